//! Runs: an agent at work in a session, from a first input to done, failed or aborted.
//!
//! ```text
//! running ◀─▶ waiting          waiting: for an approval, for the settlement of an unknown outcome,
//!    │           │              for a supervisor. It has no driver meanwhile.
//!    └───────────┴─▶ done, failed, aborted
//! ```
//!
//! A session has one run at a time; the database enforces it. The driver of a run holds it under a lease with a
//! fencing token, like a worker holds a tool call: a driver that vanishes is replaced, and its later calls
//! are refused. The progress of a run is in rows (messages, tool calls, events), never in memory, so another
//! driver can continue it.
//!
//! A run reports its progress as **run events**, in order, each once. A turn ends with exactly one of `done`,
//! `error` or `interrupt`: a unique index enforces that too.
//!
//! | file | what it decides |
//! |---|---|
//! | `start` | which run starts in a session, with which agent, revision and time limit |
//! | `drive` | who holds a run, and what its driver may record |
//! | `wait` | whether a run waits, and what makes it continue |
//! | `end` | how a run ends: by its driver, by an abort, at a time limit, or with its lease |
//! | `stop` | what ends with a run; sessions and cleanups call it, too |
//! | `rows`, `list` | the rows, their one way to be written, and lists of runs |
//! | `starter`, `active_agent`, `reserve`, `delegated_session` | on whose behalf a run works, which agent acts, what it may consume, the session of a delegated run |
//!
//! The driver is a client: `agent/src/run.rs` describes a step from its side.

use abide_schema::reducer::{RowVisibility, WaitingRows};
use abide_schema::{Module, limits};

pub(crate) mod active_agent;
pub(crate) mod delegated_session;
pub mod drive;
pub mod end;
pub mod list;
pub mod reserve;
pub(crate) mod start;
pub(crate) mod starter;
pub(crate) mod stop;
pub(crate) mod wait;

mod rows;

pub use active_agent::ActiveAgent;
pub use drive::{claim_next_run, claim_run, heartbeat_run, record_run};
pub use end::{RunEnd, abort_run, expire_run, expire_wait, finish_run, lapse_run};
pub use list::RunListEntry;
pub use reserve::{ReservedUsage, reserve_usage};
pub use rows::{NewRunEvent, Run, RunEvent, RunEventKind, RunStatus, WaitLimit};
pub(crate) use rows::{PAUSED, add_consequence, add_status, find, find_active, save, unknown_run};
pub use start::start_run;
pub(crate) use start::{NewRun, begin, must_end};
pub use starter::RunStarter;
pub use wait::wait_run;
pub(crate) use wait::{
    CALL_WAITS, continue_after_pause, continue_if_decided, is_suspended_for_call, limit_wait,
    suspend_for_call,
};

/// Returns the module.
#[must_use]
pub fn module() -> Module {
    Module::new("run")
        .visible::<Run>(RowVisibility::InScopeExcept(&["fencing_token"]))
        .visible::<WaitLimit>(RowVisibility::InScope)
        // It names capabilities and identities.
        .visible::<RunStarter>(RowVisibility::Closed)
        // It names agents that the caller may not know.
        .visible::<ActiveAgent>(RowVisibility::Closed)
        .visible::<RunListEntry>(RowVisibility::InScope)
        .visible::<RunEvent>(RowVisibility::InScope)
        // Those without a driver.
        .waiting(WaitingRows {
            kind: "runs",
            query: "SELECT updated_at AS since FROM runs WHERE status = 'running' AND driver IS NULL \
                    ORDER BY created_at, id",
        })
        .copied(("runs", "output"), &[("run_events", "data")])
        .reducer(start_run::definition())
        .reducer(claim_run::definition())
        .reducer(claim_next_run::definition())
        .reducer(heartbeat_run::definition())
        .reducer(record_run::definition().wrapping(limits::RECORD_DEPTH))
        .reducer(reserve_usage::definition())
        .reducer(wait_run::definition().wrapping(limits::RECORD_DEPTH))
        .reducer(finish_run::definition().wrapping(limits::RECORD_DEPTH))
        .reducer(abort_run::definition())
        .deadline::<Run>(
            "lease_expires_at",
            "status = 'running' AND lease_expires_at IS NOT NULL",
            lapse_run::definition(),
        )
        .lease()
        .deadline::<Run>(
            "deadline_at",
            "status = 'waiting' AND deadline_at IS NOT NULL",
            expire_run::definition(),
        )
        .deadline::<WaitLimit>("ends_at", "ends_at IS NOT NULL", expire_wait::definition())
}
