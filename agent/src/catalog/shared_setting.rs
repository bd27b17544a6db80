//! A setting that several parts of a runtime read, and that can be replaced while they run.

use std::sync::{Arc, PoisonError, RwLock};

/// The current value of a setting. A clone refers to the same one.
pub(crate) struct SharedSetting<T>(Arc<RwLock<Arc<T>>>);

impl<T> Clone for SharedSetting<T> {
    fn clone(&self) -> SharedSetting<T> {
        SharedSetting(Arc::clone(&self.0))
    }
}

impl<T> SharedSetting<T> {
    pub(crate) fn new(value: T) -> SharedSetting<T> {
        SharedSetting(Arc::new(RwLock::new(Arc::new(value))))
    }

    /// Returns the value now. A later change does not affect it.
    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}
