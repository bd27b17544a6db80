//! The loop: a runtime claims runs, and one driver for each computes the next step from rows and performs it under the
//! lease of the run.
//!
//! `attempts` cancels tasks on remote servers · `context` state shared by all drivers · `drive` the loop · `driver`
//! one run · `drivers` one task per run · `error` errors that stop a runtime · `heartbeat` the thread that renews leases ·
//! `lease` the lease of a run · `next_step` the next step · `pause` stages at which a run waits · `runtime` claims
//! runs · `settings` settings of a runtime · `step` how a step ends · `step_batch` how a step is
//! recorded.

pub(crate) mod attempts;
pub(crate) mod context;
pub(crate) mod drive;
pub(crate) mod driver;
pub(crate) mod drivers;
pub(crate) mod error;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod next_step;
pub(crate) mod pause;
pub(crate) mod runtime;
pub(crate) mod settings;
pub(crate) mod step;
pub(crate) mod step_batch;
