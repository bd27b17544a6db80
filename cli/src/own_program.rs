//! The program of this process, to start it once more.

use std::path::PathBuf;
use std::{env, io};

/// Returns the path of this program. Linux reads it from `/proc`, which a chroot can lack: then it is the name with which the
/// program was started, which is looked up in `PATH` once more.
///
/// # Errors
/// Neither is known.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    env::current_exe().or_else(|why| {
        let name = env::args_os().next().filter(|name| !name.is_empty());
        name.map(PathBuf::from).ok_or(why)
    })
}
