//! Recordings of runs: made from rows, repeated offline, and compared.
//!
//! `diff` what has changed · `recording` the file · `repeat` the repetition.

pub(crate) mod diff;
pub(crate) mod recording;
pub(crate) mod repeat;
