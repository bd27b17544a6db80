//! The environment of a process that starts tools. A program can read the environment that its parent was started with
//! (`/proc/PPID/environ`), and nothing that the parent does later changes that. So a process that will start programs moves
//! its variables into memory and starts itself again, as the same process, with those that are known to be harmless.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use abide_agent::Environment;
use abide_schema::{Code, Refusal};

use crate::failure::Failure;

/// The variable with the number of the file, in memory, that holds the variables of before.
const HANDLE: &str = "ABIDE_ENVIRONMENT_FD";

/// Variables that this process and the libraries in it look at, and that hold no secret.
const KEPT: [&str; 38] = [
    "ABIDE_LOG",
    "ABIDE_URL",
    "ALL_PROXY",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORTERM",
    "COLUMNS",
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
    "XDG_RUNTIME_DIR",
    "LLVM_PROFILE_FILE",
];

/// The variables of the process, of which those that may be secret are in memory alone. Must be called before there is a
/// second thread: it may start the process again.
///
/// # Errors
/// The process cannot be started again.
pub(crate) fn withdrawn() -> Result<Environment, Failure> {
    let all = match env::var_os(HANDLE) {
        Some(handle) => taken_over(&handle),
        // Only there can a program read another process's environment as a file.
        None if cfg!(target_os = "linux") => withdraw(),
        None => Ok(unicode(env::vars_os())),
    };
    let all = all.map_err(|why| {
        let detail = format!("the environment cannot be withdrawn from the tools: {why}");
        Failure::from(Refusal::new(Code::Internal, detail))
    })?;
    forbid_inspection();
    Ok(all.into_iter().collect())
}

type Variables = BTreeMap<String, String>;

/// Starts this process again if there is anything that may be a secret.
fn withdraw() -> io::Result<Variables> {
    let (kept, moved): (Vec<_>, Vec<_>) = env::vars_os().partition(|(name, _)| is_kept(name));
    if moved.is_empty() {
        return Ok(unicode(kept));
    }
    let mut file = memory()?;
    file.write_all(serde_json::to_string(&unicode(moved))?.as_bytes())?;
    let program = env::current_exe()?;
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    let mut again = Command::new(program);
    again.arg0(name).args(arguments).env_clear().envs(kept);
    Err(again.env(HANDLE, file.as_raw_fd().to_string()).exec())
}

/// Those whose name and value are Unicode: what reads them takes texts.
fn unicode(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Variables {
    let pairs = variables
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    pairs.collect()
}

fn is_kept(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(&name)) || name.starts_with("LC_")
}

/// Takes the variables over from the process as it was before, and empties the file: programs inherit its handle.
fn taken_over(handle: &OsString) -> io::Result<Variables> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{HANDLE} is not ours"));
    let handle: u32 = handle.to_str().and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let mut file =
        File::options().read(true).write(true).open(format!("/proc/self/fd/{handle}"))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut all: Variables = serde_json::from_str(&text).map_err(|_| wrong())?;
    file.set_len(0)?;
    all.extend(unicode(env::vars_os()).into_iter().filter(|(name, _)| name != HANDLE));
    Ok(all)
}

/// A file that has no name, and that is open in the process after this one.
#[cfg(target_os = "linux")]
fn memory() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create("abide-environment", MemfdFlags::empty())?))
}

/// Other processes of this user may not look into this one: not at its environment, its memory or its open files.
#[cfg(target_os = "linux")]
fn forbid_inspection() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(why) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%why, "other processes of this user can look into this one");
    }
}

#[cfg(not(target_os = "linux"))]
fn memory() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn forbid_inspection() {}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    /// A variable that is not Unicode made the process panic.
    #[test]
    fn variables_that_are_not_unicode_are_left_out() {
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let variables = [
            (text(b"GOOD"), text(b"1")),
            (text(b"BAD"), text(b"\xff")),
            (text(b"B\xffD"), text(b"1")),
        ];
        assert_eq!(unicode(variables), [("GOOD".to_owned(), "1".to_owned())].into());
    }
}
