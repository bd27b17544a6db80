//! Hides the environment of a process that starts tools. A program can read the initial environment of its parent
//! (`/proc/PPID/environ`), and the parent cannot change it afterwards. So the process moves its variables into
//! memory and executes itself again, with the same process id, keeping only variables that are known to be
//! harmless.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use abide_agent::Environment;
use abide_schema::{Code, Refusal};

use crate::failure::Failure;

/// The variable with the number of the in-memory file that has the original variables.
pub(crate) const HANDLE: &str = "ABIDE_ENVIRONMENT_FD";

/// Variables that this process and its libraries read, and that have no secrets.
const KEPT: [&str; 49] = [
    "ABIDE_CA",
    "ABIDE_CLIENT_CERT",
    "ABIDE_CLIENT_KEY",
    "ABIDE_LOG",
    "ABIDE_LOG_FORMAT",
    "ABIDE_URL",
    "ALL_PROXY",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "COLUMNS",
    "EDITOR",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "LINES",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGNAME",
    "NO_COLOR",
    "NO_PROXY",
    "NOTIFY_SOCKET",
    "PATH",
    "PWD",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
    "SHELL",
    "SQLITE_TMPDIR",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TEMP",
    "TERM",
    "TMP",
    "TMPDIR",
    "TOKIO_WORKER_THREADS",
    "TZ",
    "USER",
    "VISUAL",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "XDG_RUNTIME_DIR",
    "LLVM_PROFILE_FILE",
];

/// The variables of the process. Those that may be secret are only in memory afterwards. Call it before a second
/// thread starts: it may execute the process again, with the variables of options (`options`), which are parsed again.
///
/// # Errors
/// The process cannot be executed again.
pub(crate) fn hide(options: &BTreeSet<String>) -> Result<Environment, Failure> {
    let variables = match env::var_os(HANDLE) {
        Some(handle) => read_inherited(&handle),
        // Only Linux exposes the environment of another process as a file.
        None if cfg!(target_os = "linux") => exec_without_secrets(options),
        None => Ok(retain_unicode(env::vars_os())),
    }
    .map_err(|why| {
        let detail = format!("the environment cannot be hidden from the tools: {why}");
        Failure::from(Refusal::new(Code::Internal, detail))
    })?;
    forbid_inspection();
    Ok(variables.into_iter().collect())
}

type Variables = BTreeMap<String, String>;

/// Executes this process again if it has variables that may be secret.
fn exec_without_secrets(options: &BTreeSet<String>) -> io::Result<Variables> {
    let (kept, moved): (Vec<_>, Vec<_>) =
        env::vars_os().partition(|(name, _)| is_kept(name) || is_option(name, options));
    if moved.is_empty() {
        return Ok(retain_unicode(kept));
    }
    let program = match env::current_exe() {
        Ok(program) => program,
        // Without /proc, which a chroot can lack, the tools cannot read the environment of this process either.
        Err(_) if !Path::new("/proc/self").exists() => return Ok(retain_unicode(env::vars_os())),
        Err(why) => return Err(why),
    };
    let mut file = create_memory_file()?;
    file.write_all(serde_json::to_string(&retain_unicode(moved))?.as_bytes())?;
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    let mut again = Command::new(program);
    again.arg0(name).args(arguments).env_clear().envs(kept);
    Err(again.env(HANDLE, file.as_raw_fd().to_string()).exec())
}

/// The variables with Unicode names and values; readers use texts.
fn retain_unicode(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Variables {
    let pairs = variables
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    pairs.collect()
}

fn is_kept(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(&name)) || name.starts_with("LC_")
}

fn is_option(name: &OsString, options: &BTreeSet<String>) -> bool {
    name.to_str().is_some_and(|name| options.contains(name))
}

/// Reads the variables of the original process, and empties the file. Its descriptor stays open in this process.
fn read_inherited(handle: &OsString) -> io::Result<Variables> {
    let handle: u32 =
        handle.to_str().and_then(|text| text.parse().ok()).ok_or_else(foreign_handle_error)?;
    let mut file =
        File::options().read(true).write(true).open(format!("/proc/self/fd/{handle}"))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut all: Variables = serde_json::from_str(&text).map_err(|_| foreign_handle_error())?;
    file.set_len(0)?;
    all.extend(retain_unicode(env::vars_os()).into_iter().filter(|(name, _)| name != HANDLE));
    Ok(all)
}

fn foreign_handle_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{HANDLE} is not ours"))
}

/// A file without a name, which stays open across `exec`.
#[cfg(target_os = "linux")]
fn create_memory_file() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create("abide-environment", MemfdFlags::empty())?))
}

/// Prevents other processes of this user from reading this one's environment, memory and open files.
#[cfg(target_os = "linux")]
fn forbid_inspection() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(why) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(
            name: "memory_exposed",
            %why,
            "other processes of this user can read the memory of this one"
        );
    }
}

#[cfg(not(target_os = "linux"))]
fn create_memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn forbid_inspection() {}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    /// A variable that is not Unicode caused a panic.
    #[test]
    fn variables_that_are_not_unicode_are_left_out() {
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let variables = [
            (text(b"GOOD"), text(b"1")),
            (text(b"BAD"), text(b"\xff")),
            (text(b"B\xffD"), text(b"1")),
        ];
        assert_eq!(retain_unicode(variables), [("GOOD".to_owned(), "1".to_owned())].into());
    }
}
