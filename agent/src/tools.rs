//! Tool calls: they are requested, claimed, run and recorded.
//!
//! | file | what it does |
//! |---|---|
//! | `calls` | the calls of a run: requested, claimed, run, recorded, delivered |
//! | `executor` | what runs a call |
//! | `registry`, `runtime_tool`, `response` | the tools of the runtime, what the loop knows about each, and the one for archived results |
//! | `claimed`, `exchange`, `left_tasks` | a call while it runs, what it exchanges with a server, and tasks that it leaves there |
//! | `approval`, `interrupted`, `undelivered` | decisions, what interrupted calls have changed, outcomes that no message has |
//! | `arguments` | what a model wrote |
//! | `worker`, `waiting_calls` | calls of no run |

pub(crate) mod approval;
pub(crate) mod arguments;
pub(crate) mod calls;
pub(crate) mod claimed;
pub(crate) mod exchange;
pub(crate) mod executor;
pub(crate) mod interrupted;
pub(crate) mod left_tasks;
pub(crate) mod registry;
pub(crate) mod response;
pub(crate) mod runtime_tool;
pub(crate) mod undelivered;
mod waiting_calls;
pub(crate) mod worker;
