//! Detaches the engine from the terminal and from the streams of the program that started it.

use std::env;
use std::fs::File;
use std::io::{self, Read as _};
use std::process::{Command, Stdio};

use abide_schema::{Code, Refusal};
use rustix::io::Errno;
use rustix::process::setsid;

use crate::failure::Failure;
use crate::output::print_part;
use crate::own_program::own_program;

/// Makes this process the leader of a new session, so that the signals of a terminal (Ctrl-C, its end) do not reach an
/// engine that others share. A process group leader cannot call setsid, so it starts itself
/// again as a child and forwards the child's output. Then the result is that of the child.
///
/// # Errors
/// The child cannot be started.
pub(super) fn from_terminal() -> Result<Option<Result<(), Failure>>, Failure> {
    // The group and the session are not looked up first: in a container their leaders can be processes outside, whose
    // id is 0 inside, which `rustix` rejects.
    match setsid() {
        Ok(_) => Ok(None),
        Err(Errno::PERM) => start_child().map(Some),
        Err(why) => Err(detach_failure(&why.into())),
    }
}

fn start_child() -> Result<Result<(), Failure>, Failure> {
    let mut child = Command::new(own_program().map_err(|why| detach_failure(&why))?)
        .args(env::args_os().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|why| detach_failure(&why))?;
    let mut line = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_string(&mut line).map_err(|why| detach_failure(&why))?;
    }
    print_part(line.as_str())?;
    if !line.is_empty() && !line.starts_with("{\"error\"") {
        return Ok(Ok(()));
    }
    // The child has printed why.
    let _ = child.wait().map_err(|why| detach_failure(&why))?;
    Ok(Err(Failure::Reported))
}

/// Closes the standard streams: their readers wait for their end, and the folder of a terminal cannot be removed. With
/// `ABIDE_LOG` stderr stays open.
///
/// # Errors
/// The system's error.
pub(super) fn close_streams() -> Result<(), Failure> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|why| detach_failure(&why))?;
    rustix::stdio::dup2_stdin(&null).map_err(|why| detach_failure(&why.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|why| detach_failure(&why.into()))?;
    if env::var_os("ABIDE_LOG").is_none() {
        rustix::stdio::dup2_stderr(&null).map_err(|why| detach_failure(&why.into()))?;
    }
    Ok(())
}

fn detach_failure(why: &io::Error) -> Failure {
    Refusal::new(Code::Internal, format!("the engine cannot be detached: {why}")).into()
}
