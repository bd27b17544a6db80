//! Remote agents, reached by A2A: each run is a task there, and each message is recorded before it is sent.
//!
//! `cancel` tasks that are no longer needed · `input` questions as approvals · `published_text` text that was
//! published · `rows` what was exchanged · `run` one run · `task` a task as its events describe it.

pub(crate) mod cancel;
pub(crate) mod input;
pub(crate) mod published_text;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod task;
