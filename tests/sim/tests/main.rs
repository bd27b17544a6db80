//! A sample of the crashes and faults of `cargo xtask crash --all` and of the seeds of `cargo xtask
//! sim`, and regression tests of the bugs that they found.

#![expect(clippy::unwrap_used, reason = "a failed test reports the line")]

mod checkpoints;
mod crashes;
mod formats;
mod hostile;
mod panics;
mod seeds;
mod stories;
mod upgrade;
