//! The loop: a runtime claims runs, and one driver for each computes the next step from rows and performs it under the
//! lease of the run.
//!
//! | file | what it does |
//! |---|---|
//! | `runtime`, `context`, `settings`, `error` | a runtime, what its parts share, and its errors |
//! | `registrar`, `reloader` | registers tools and definitions; reads the folder again when it changes |
//! | `dispatcher`, `drivers` | gives runs to drivers; one task for each run |
//! | `drive`, `driver` | the loop of one run: refresh, decide, do; and what its driver holds |
//! | `state`, `decide` | the rows of a run, and what comes next; without IO |
//! | `read`, `record`, `step_batch`, `step` | the rows that a driver reads, the steps that it records, and how they end |
//! | `active_agent`, `limits`, `pause`, `wait` | the agent that acts, its limits, the stages at which a run pauses, and waits |
//! | `lease`, `heartbeat` | the lease of a run, and the thread that renews leases |
//! | `attempts` | cancels tasks on remote servers |

pub(crate) mod active_agent;
pub(crate) mod attempts;
pub(crate) mod context;
pub(crate) mod decide;
pub(crate) mod dispatcher;
pub(crate) mod drive;
pub(crate) mod driver;
pub(crate) mod drivers;
pub(crate) mod error;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod pause;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod registrar;
pub(crate) mod reloader;
pub(crate) mod runtime;
pub(crate) mod settings;
pub(crate) mod state;
pub(crate) mod step;
pub(crate) mod step_batch;
pub(crate) mod wait;
