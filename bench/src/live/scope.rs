//! The settings of all parts of `live`.

use std::path::PathBuf;

/// Settings of all parts.
pub(crate) struct Scope {
    pub(super) quick: bool,
    pub(super) dir: PathBuf,
}
