//! The `abide` program: built once, run as a child that is killed with the test.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time after which a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program without arguments, with an environment independent of the user's.
pub(crate) fn abide() -> Command {
    let mut command = Command::new(program());
    for name in ["COLUMNS", "CREDENTIALS_DIRECTORY"] {
        command.env_remove(name);
    }
    // Every option has a variable, and there are others.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("ABIDE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = A>) -> ExitedProcess {
    Process::spawn(abide().args(args)).ended()
}

/// Next to the test's own executable, in cargo's output folder.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built().join("abide"))
}

/// The worker program of `worker.rs`, controlled through stdin and stdout.
pub(crate) fn worker() -> Command {
    let mut command = Command::new(built().join("examples/worker"));
    command.stdin(Stdio::piped());
    command
}

/// The example `refund` of the Rust SDK: it waits for a line on stdin in the middle of its tool.
pub(crate) fn refund() -> Command {
    let mut command = Command::new(built().join("examples/refund"));
    command.env("ABIDE_BINARY", program()).stdin(Stdio::piped());
    command
}

/// The folder of the programs, which are built once.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

/// Builds the programs with the features that `cargo test --workspace` uses: what it has compiled is not compiled
/// again. `--example` includes the features of development dependencies.
fn build() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap();
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let mut build = cargo();
    build.args(["build", "--workspace", "--bin", "abide", "--example", "worker"]);
    build.args(["--example", "refund", "--quiet", "--profile", profile, "--target-dir"]);
    build.arg(folder.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().unwrap().success(), "the programs do not build");
    folder.to_owned()
}

/// The cargo that runs the tests, without the variables that describe their package: the build script of `ring` depends on
/// them, so `ring` and all that uses it would be compiled again.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_PKG_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// The result of a finished process.
#[derive(Debug)]
pub(crate) struct ExitedProcess {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl ExitedProcess {
    /// Its output, if it succeeded.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Its output as JSON, if it succeeded.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        let stdout = self.good();
        serde_json::from_str(&stdout).unwrap_or_else(|why| panic!("{why}: {stdout}"))
    }
}

/// A running program. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
    /// stderr as long as nobody reads it.
    unread: Option<ChildStderr>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Process { child, stdout, stderr, unread: None }
    }

    /// Starts it with this stdout, which is not read.
    pub(crate) fn spawn_with_stdout(command: &mut Command, stdout: impl Into<Stdio>) -> Process {
        let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = lines(child.stderr.take().unwrap());
        Process { child, stdout: channel().1, stderr, unread: None }
    }

    /// Starts it with a pipe as stderr that nobody reads.
    pub(crate) fn spawn_unread(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let unread = child.stderr.take();
        Process { child, stdout, stderr: channel().1, unread }
    }

    /// Reads stderr from now on.
    pub(crate) fn read_errors(&mut self) {
        self.stderr = lines(self.unread.take().unwrap());
    }

    /// Closes the pipe of stderr.
    pub(crate) fn close_errors(&mut self) {
        self.unread = None;
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its input, once.
    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The next line of stdout, waited for.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.stdout.recv_timeout(PATIENCE).unwrap_or_else(|why| {
            panic!("no further line: {why}; stderr: {}", self.stderr.try_iter().collect::<String>())
        })
    }

    /// Waits for the next line of stderr.
    #[track_caller]
    pub(crate) fn error_line(&self) -> String {
        self.stderr.recv_timeout(PATIENCE).expect("a line on stderr")
    }

    /// Lets it continue.
    pub(crate) fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Waits for its end; returns the output since the last read.
    #[track_caller]
    pub(crate) fn ended(mut self) -> ExitedProcess {
        let until = Instant::now() + PATIENCE;
        let stdout = rest(&self.stdout, until);
        let stderr = rest(&self.stderr, until);
        let code = self.child.wait().unwrap().code();
        ExitedProcess { code, stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[track_caller]
fn rest(lines: &Receiver<String>, until: Instant) -> String {
    let mut text = String::new();
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => return text,
            Err(RecvTimeoutError::Timeout) => panic!("it does not end; so far: {text}"),
        }
    }
}

/// Reports a skipped test on the test output, past its capture.
pub(crate) fn left_out(what: &str) {
    // `println!` would be captured.
    let mut stdout = std::io::stdout();
    writeln!(stdout, "skipped: {what}").unwrap();
}
