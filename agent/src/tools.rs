//! Tool calls: they are requested, claimed, run and recorded.
//!
//! `approval` what an approval adds to a call · `arguments` what a model wrote · `waiting_calls` calls that wait for a worker · `calls` the calls of a run ·
//! `claimed` a call while its tool runs · `exchange` what a call exchanges with a server · `interrupted` what
//! interrupted calls have changed · `left_tasks` tasks of servers that are no longer needed · `response` archived
//! results · `registry` the list of the runtime's tools · `runtime_tool` what the loop knows about each · `undelivered` outcomes that no message has · `worker` calls of no run.

pub(crate) mod approval;
pub(crate) mod arguments;
pub(crate) mod calls;
pub(crate) mod claimed;
pub(crate) mod exchange;
pub(crate) mod interrupted;
pub(crate) mod left_tasks;
pub(crate) mod registry;
pub(crate) mod response;
pub(crate) mod runtime_tool;
pub(crate) mod undelivered;
mod waiting_calls;
pub(crate) mod worker;
