//! The watchdog: measurements of each answer, and what it does when a run degrades.
//!
//! `health` measurements and actions · `state` what a driver remembers.

pub(crate) mod health;
pub(crate) mod state;
