//! Tool calls: they are requested, claimed, run, recorded and delivered.
//!
//! | file | what it decides |
//! |---|---|
//! | `calls` | whether a call of a run is admitted; when it is claimed, run and recorded |
//! | `executor` | what runs a call: a tool of the runtime, or one of `abide-tools` |
//! | `claimed` | what is recorded of an outcome: a success, a failure, another attempt, or unknown |
//! | `delivery`, `undelivered` | what the model gets of a call that has ended; of one whose run has ended before |
//! | `approval` | what an approver or a settler is asked, and what a decision adds to a call |
//! | `runtime_tool`, `registry`, `response` | a tool of the runtime, the list of them, and the one for archived results |
//! | `exchange`, `left_tasks` | what a call exchanges with a server, and which tasks it leaves there |
//! | `arguments` | what a model wrote |
//! | `repeated` | calls of a run that repeats a recording |
//! | `worker`, `waiting_calls` | calls of no run |
//!
//! The kinds of tools themselves (functions, HTTP, programs, MCP, built-in ones) are the crate `abide-tools`.

pub(crate) mod approval;
pub(crate) mod arguments;
pub(crate) mod calls;
pub(crate) mod claimed;
pub(crate) mod delivery;
pub(crate) mod exchange;
pub(crate) mod executor;
pub(crate) mod left_tasks;
pub(crate) mod registry;
mod repeated;
pub(crate) mod response;
pub(crate) mod runtime_tool;
pub(crate) mod undelivered;
mod waiting_calls;
pub(crate) mod worker;
