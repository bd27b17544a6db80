//! Fault and simulation tests: a faulty disk, a crash at every step, and a simulator with virtual
//! time.
//!
//! Changes when the checked properties or the faults change. In reading order: [`disk`] what
//! survives a crash · [`rig`] one engine, step by step · [`script`] a fixed sequence of calls ·
//! [`checks`] the properties · [`crash`] the script with a fault at every step · [`panics`] a panic
//! at every point of every thread · [`sim`] random clients and faults, by seed · [`keep`] the file
//! of a released format.

#[cfg(feature = "seeded-bugs")]
pub mod bugs;
pub mod checks;
pub mod crash;
pub mod director;
pub mod disk;
pub mod history;
pub mod keep;
#[cfg(feature = "virtual-time")]
pub mod panics;
pub mod random;
pub mod rig;
pub mod script;
#[cfg(feature = "virtual-time")]
pub mod sim;
