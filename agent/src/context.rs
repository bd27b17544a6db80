//! The context of a model: the messages of a session, derived from rows for each request, and the replacement of those that no
//! longer fit.
//!
//! `checked_summary` a model's summary after the middleware · `compaction` older messages are summarised · `entry` a
//! message and its data · `session_entries` the messages that a driver has read · `reduction` results and arguments are archived · `request_size` tokens of a request ·
//! `summarized` the newest summary · `summary` the form of a summary · `transcript` the messages for a model ·
//! `truncation` shortening of long results.

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
