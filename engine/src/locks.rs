//! Locks for shared state: the standard ones, or those of a model checker, which then schedules the
//! threads at each of them (`interleavings`).

#[cfg(feature = "interleavings")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "interleavings"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
