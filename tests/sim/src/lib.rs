//! Nothing is lost: a disk that fails, a crash at every step, and a simulator with virtual time.
//!
//! Changes when what the engine is held to, or what is done to it, changes. In reading order:
//! [`disk`] what survives a crash · [`rig`] one engine, step by step · [`script`] what it is asked ·
//! [`checks`] what it is held to · [`crash`] the script, with a fault at every step · [`panics`] a panic at every point of every thread ·
//! [`sim`] everybody at once, by a seed · [`keep`] the file of a released format.

#[cfg(feature = "seeded-bugs")]
pub mod bugs;
pub mod checks;
pub mod crash;
pub mod director;
pub mod disk;
pub mod history;
pub mod keep;
pub mod panics;
pub mod random;
pub mod rig;
pub mod script;
pub mod sim;
