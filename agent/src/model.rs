//! Requests to models: which model, what it may cost, how its answer is streamed, checked and recorded.
//!
//! `budget` reservations in budgets · `call` one request · `choice` the models of a run · `embedded_json` JSON in a text · `outgoing` what leaves a run · `restart` an answer starts
//! again · `stopped` why a model stopped · `structured` answers in a given form.

pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod choice;
pub(crate) mod embedded_json;
pub(crate) mod outgoing;
pub(crate) mod restart;
pub(crate) mod stopped;
pub(crate) mod structured;
