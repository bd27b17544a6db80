//! A share of the crashes and faults that `cargo xtask crash --all` goes through and of the seeds of
//! `cargo xtask sim`; and the bugs that were found by them, each as the story of how it went.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod crashes;
mod formats;
mod hostile;
mod panics;
mod seeds;
mod stories;
mod upgrade;
