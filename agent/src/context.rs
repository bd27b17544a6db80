//! The context of a model: the messages of a session, derived from rows for each request, and the replacement of those that no
//! longer fit.
//!
//! | file | what it does |
//! |---|---|
//! | `entry`, `session_entries` | a message and its data; the messages that a driver has read |
//! | `transcript` | the messages for a model |
//! | `request_size` | the tokens of a request, and what is cut if it does not fit |
//! | `truncation`, `reduction` | long results are shortened; old results and arguments are archived |
//! | `compaction` | when older messages are summarised, and how |
//! | `summary`, `checked_summary`, `summarized` | the form of a summary; a model's summary after the middleware; the newest one |

pub(crate) mod checked_summary;
pub(crate) mod compaction;
pub(crate) mod entry;
pub(crate) mod reduction;
pub(crate) mod request_size;
pub(crate) mod session_entries;
pub(crate) mod summarized;
pub(crate) mod summary;
pub(crate) mod transcript;
pub(crate) mod truncation;
