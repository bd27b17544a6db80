//! Tool calls: they are requested, claimed, run and recorded.
//!
//! `arguments` what a model wrote · `calls` the calls of a run · `claimed` a call while its tool runs · `response`
//! archived results · `worker` calls of no run.

pub(crate) mod arguments;
pub(crate) mod calls;
pub(crate) mod claimed;
pub(crate) mod response;
pub(crate) mod worker;
