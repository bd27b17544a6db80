//! Requests to models: which model, what it may cost, how its answer is streamed, checked and recorded.
//!
//! | file | what it does |
//! |---|---|
//! | `request` | one request, from the conversation to the recorded answer |
//! | `stream` | the answer while it arrives, as events |
//! | `answer` | the complete answer: checked, changed, and recorded with the requests of its calls |
//! | `choice` | the models of a run, in order, and what their answers consume |
//! | `outgoing` | for which purposes text leaves a run, and what comes before it |
//! | `budget` | reservations in the budgets of a run |
//! | `structured`, `embedded_json` | answers in a given form, and JSON in a text |
//! | `stopped` | why a model stopped, and which of the reasons end the run |
//! | `restart` | an answer starts again, because its driver ended in the middle of it |

pub(crate) mod answer;
pub(crate) mod budget;
pub(crate) mod choice;
pub(crate) mod embedded_json;
pub(crate) mod outgoing;
pub(crate) mod request;
pub(crate) mod restart;
pub(crate) mod stopped;
pub(crate) mod stream;
pub(crate) mod structured;
