//! Command-line programs as agents: their output lines are events, their permission requests are approvals.
//!
//! `approvals` permission requests · `calls` calls of their own tools · `output` output lines · `plan` plans that
//! programs report · `reparse` stored lines read again · `run` one run.

pub(crate) mod approvals;
pub(crate) mod calls;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod reparse;
pub(crate) mod run;
