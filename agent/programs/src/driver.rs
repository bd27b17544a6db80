//! The task behind a run: one loop over all events of the process.
//!
//! Invariant: the loop reads both output pipes and writes stdin concurrently, so none of them blocks another. Only
//! a reader of the run that is slower than the program delays stdout.
//! Invariant: one deadline covers the whole run. The time after it is limited by the grace period.
//! Invariant: no line leaves the driver before the secrets of the environment are removed from it.
//! Invariant: terminal events of the parser are held back until the process has exited; then exactly one is sent.

use std::collections::VecDeque;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::command;
use crate::config::CliConfig;
use crate::control::{ControlRequest, OpenApprovals};
use crate::dialogue::{Dialogue, Reply};
use crate::environment::Environment;
use crate::event::{ErrorKind, Failure, Line, NoticeCode, ProgramEvent};
use crate::lines::Lines;
use crate::process::{self, Process};
use crate::process_identity::ProcessIdentity;
use crate::prompt::Prompt;
use crate::reading::{ReadLine, Reading};
use crate::run_result::{StopReason, verdict};
use crate::secrets::Secrets;

/// Maximum size of a read: the capacity of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Number of bytes at the end of stderr that are kept; error messages are usually at the end.
const STDERR_TAIL_BYTES: usize = 8 * 1024;

/// How long a server that has given its answer may take to end after its stdin was closed. Some servers do not end then.
const DISMISSAL: Duration = Duration::from_secs(2);

/// How long a program may be silent when it has reported what may be its answer, or has worked on after one. It covers
/// the time until the first token of a slow model: OpenCode's compaction looks like the end, and the agent continues.
const SILENCE: Duration = Duration::from_secs(30);

/// Replaces a timeout that the clock cannot represent.
const FOR_EVER: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Until the deadline.
    Running,
    /// SIGTERM is sent; until the end of the grace period.
    Stopping,
    /// SIGKILL is sent.
    Killed,
    /// The process has exited. Its output is read until the pipes end, or have no data for the grace period: a
    /// child process may hold them open.
    Exited,
}

/// All events that wake the loop.
enum Wake {
    Requested(Option<ControlRequest>),
    /// The reader of the run was dropped.
    Abandoned,
    Delivered,
    Stdout(io::Result<usize>),
    Stderr(io::Result<usize>),
    Written(io::Result<usize>),
    Exited(io::Result<ExitStatus>),
    Time,
}

/// A run from start to end.
pub(crate) struct Driver {
    process: Process,
    reading: Reading,
    timeout: Duration,
    grace: Duration,
    deadline: Instant,
    secrets: Secrets,
    requests: mpsc::UnboundedReceiver<ControlRequest>,
    requests_ended: bool,
    line_sender: mpsc::Sender<Line>,
    abandoned: bool,
    phase: Phase,
    /// The deadline of the phase, if it has one.
    due: Instant,
    /// When a program that has reported its end, and has not exited, is ended.
    exit_due: Option<Instant>,
    /// Whether the program has worked on since its last answer.
    works_on: bool,
    /// Data to write to stdin.
    outbox: Vec<u8>,
    /// Whether nothing is written to stdin yet; it stays open.
    is_held: bool,
    /// Whether the prompt is held back once the program has reported its session.
    holds_prompt: bool,
    /// Whether the program has read any of its input.
    has_read_input: bool,
    lines: Lines,
    /// Lines to deliver. While there are any, stdout is not read.
    queue: VecDeque<Line>,
    /// Whether further output on stdout is ignored.
    ignores_stdout: bool,
    stdout_buffer: Box<[u8]>,
    stderr_buffer: Box<[u8]>,
    stderr: Vec<u8>,
    /// Whether `stderr` is only the end of what the program wrote.
    is_stderr_cut: bool,
}

impl Driver {
    /// Starts the process. If that fails, returns the terminal event.
    pub(crate) fn start(
        config: CliConfig,
        prompt: &Prompt,
        mut dialogue: Box<dyn Dialogue>,
        open: OpenApprovals,
        line_sender: mpsc::Sender<Line>,
        requests: mpsc::UnboundedReceiver<ControlRequest>,
    ) -> Result<Self, Box<ProgramEvent>> {
        let refused = |failure| Box::new(ProgramEvent::Error(failure));
        let environment = Environment::new(&config, std::env::vars_os()).map_err(|why| {
            let what = format!("cannot start the program: {why}");
            refused(Failure::new(ErrorKind::RuntimeCrash, what))
        })?;
        let command = command::command(&config).map_err(|why| {
            let what = format!("cannot resume a session of this program: {why}");
            refused(Failure::new(ErrorKind::CapabilityUnsupported, what))
        })?;
        let process = Process::spawn(&command, &config, &environment).map_err(|error| {
            let name = command.first().map_or("", String::as_str);
            let what = format!("cannot start program {name:?}: {error}");
            refused(Failure::new(ErrorKind::RuntimeCrash, what))
        })?;
        let outbox = dialogue.opening(prompt);
        let now = Instant::now();
        let deadline = now.checked_add(config.timeout).unwrap_or(now + FOR_EVER);
        let buffer = || vec![0; READ_BYTES].into_boxed_slice();
        Ok(Self {
            process,
            reading: Reading::new(dialogue, config.terminal, open),
            timeout: config.timeout,
            grace: config.grace,
            deadline,
            secrets: environment.secrets,
            requests,
            requests_ended: false,
            line_sender,
            abandoned: false,
            phase: Phase::Running,
            due: deadline,
            exit_due: None,
            works_on: false,
            outbox: outbox.into_bytes(),
            is_held: true,
            holds_prompt: true,
            has_read_input: false,
            lines: Lines::new(config.max_output_bytes, config.max_line_bytes),
            queue: VecDeque::new(),
            ignores_stdout: false,
            stdout_buffer: buffer(),
            stderr_buffer: buffer(),
            stderr: Vec::new(),
            is_stderr_cut: false,
        })
    }

    /// Returns the identity of the process.
    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.process.identity()
    }

    /// Runs the process to its end, and sends the terminal event.
    pub(crate) async fn drive(mut self) {
        while !self.is_over() {
            // A program with continuous output must not prevent the check of the deadline.
            if self.phase != Phase::Exited && Instant::now() >= self.next_due() {
                self.on_time();
            }
            self.close_stdin_if_done();
            match self.wake().await {
                Wake::Requested(request) => self.on_request(request),
                Wake::Abandoned => {
                    self.abandoned = true;
                    self.stop(StopReason::Cancelled);
                }
                Wake::Delivered => {}
                Wake::Stdout(read) => self.on_stdout(read),
                Wake::Stderr(read) => self.on_stderr(read),
                Wake::Written(written) => self.on_written(written),
                Wake::Exited(status) => self.on_exit(status),
                Wake::Time => self.on_time(),
            }
        }
        self.end().await;
    }

    fn is_over(&self) -> bool {
        let silent = self.process.stdout.is_none() && self.process.stderr.is_none();
        let final_text = self.queue.is_empty() || self.abandoned;
        self.phase == Phase::Exited && silent && final_text
    }

    async fn wake(&mut self) -> Wake {
        let reading = self.queue.is_empty() || self.abandoned;
        let delivering = !reading;
        // The absence of output counts only while a reader is active.
        let timed = self.phase != Phase::Killed && (self.phase != Phase::Exited || reading);
        let due = self.next_due();
        tokio::select! {
            biased;
            request = self.requests.recv(), if !self.requests_ended => Wake::Requested(request),
            () = self.line_sender.closed(), if !self.abandoned => Wake::Abandoned,
            permit = self.line_sender.reserve(), if delivering => {
                if let (Ok(permit), Some(line)) = (permit, self.queue.pop_front()) {
                    permit.send(line);
                }
                Wake::Delivered
            }
            status = self.process.child.wait(), if self.phase != Phase::Exited => {
                Wake::Exited(status)
            }
            read = read(&mut self.process.stdout, &mut self.stdout_buffer), if reading => {
                Wake::Stdout(read)
            }
            read = read(&mut self.process.stderr, &mut self.stderr_buffer) => Wake::Stderr(read),
            written = write(&mut self.process.stdin, &self.outbox), if !self.is_held => {
                Wake::Written(written)
            }
            () = tokio::time::sleep_until(due), if timed => Wake::Time,
        }
    }

    /// Returns the deadline of the phase, or an earlier one after an answer.
    fn next_due(&self) -> Instant {
        match self.exit_due {
            Some(exit_due) if self.phase == Phase::Running => self.due.min(exit_due),
            _ => self.due,
        }
    }

    fn on_request(&mut self, request: Option<ControlRequest>) {
        match request {
            Some(ControlRequest::OpenSession) => self.is_held = false,
            Some(ControlRequest::SendPrompt) => {
                self.is_held = false;
                self.holds_prompt = false;
            }
            Some(ControlRequest::Cancel(signal)) => {
                self.stop_with(StopReason::Cancelled, signal.into());
            }
            Some(ControlRequest::Interrupt) => {
                self.reading.facts.interrupted = true;
                match self.reading.dialogue.interrupt() {
                    Some(reply) => self.write(reply),
                    None => self.process.signal(Signal::INT),
                }
            }
            Some(ControlRequest::Decide { request_id, input, decision }) => {
                let reply = self.reading.dialogue.decide(&request_id, &input, decision);
                self.write(reply);
            }
            None => self.requests_ended = true,
        }
    }

    fn write(&mut self, reply: Reply) {
        self.outbox.extend(reply.text.bytes());
        let events = self.reading.keep(reply.events);
        if !events.is_empty() {
            self.deliver(Line { raw: None, events });
        }
    }

    /// Queues a line. The reader gets no secret: what it reads is stored and shown.
    fn deliver(&mut self, line: Line) {
        self.queue.push_back(self.secrets.redact_line(line));
    }

    fn on_stdout(&mut self, read: io::Result<usize>) {
        self.received();
        match read {
            Ok(0) => {
                self.process.stdout = None;
                let last = self.lines.finish();
                if let Some(last) = last.filter(|_| !self.ignores_stdout) {
                    self.on_line(last);
                }
            }
            Ok(_) if self.ignores_stdout => {}
            Ok(bytes) => {
                let mut whole = VecDeque::new();
                let read = &self.stdout_buffer[..bytes];
                let fits = self.lines.push(read, Instant::now(), &mut whole);
                for line in whole {
                    self.on_line(line);
                }
                if let Err(overflow) = fits {
                    self.ignores_stdout = true;
                    self.stop(StopReason::Overflow(overflow));
                }
            }
            Err(error) => {
                self.process.stdout = None;
                self.broke(format!("cannot read its output: {error}"));
            }
        }
    }

    fn on_stderr(&mut self, read: io::Result<usize>) {
        self.received();
        match read {
            Ok(0) | Err(_) => self.process.stderr = None,
            Ok(bytes) => {
                self.stderr.extend_from_slice(&self.stderr_buffer[..bytes]);
                let surplus = self.stderr.len().saturating_sub(STDERR_TAIL_BYTES);
                self.stderr.drain(..surplus);
                self.is_stderr_cut |= surplus > 0;
            }
        }
    }

    /// A write error is not a failure: the program may have read all that it needs.
    fn on_written(&mut self, written: io::Result<usize>) {
        match written {
            Ok(bytes) => {
                self.outbox.drain(..bytes);
                self.has_read_input = true;
            }
            Err(_) => self.unread(),
        }
    }

    /// The program will not read the rest of its input. If it never read anything, it does not need its input, so
    /// no notice is sent.
    fn unread(&mut self) {
        self.process.stdin = None;
        self.outbox.clear();
        if !self.has_read_input {
            return;
        }
        let notice = ProgramEvent::Notice {
            code: NoticeCode::StdinUnread,
            message: "the program did not read all of its input".to_owned(),
        };
        self.deliver(Line { raw: None, events: vec![notice] });
    }

    fn on_exit(&mut self, status: io::Result<ExitStatus>) {
        match status {
            Ok(status) => self.reading.facts.exit = Some(process::exit(status)),
            Err(error) => self.broke(format!("cannot get its exit status: {error}")),
        }
        self.process.sweep();
        if self.process.stdin.take().is_some() && !self.outbox.is_empty() {
            self.unread();
        }
        self.phase = Phase::Exited;
        self.received();
    }

    fn on_time(&mut self) {
        match self.phase {
            Phase::Running if self.reading.facts.dismissed => self.terminate(),
            // At the deadline, an answer counts unless the program has worked on since.
            Phase::Running
                if self.exit_due.is_some_and(|due| Instant::now() >= due || !self.works_on) =>
            {
                self.reading.facts.dismissed = true;
                self.terminate();
            }
            Phase::Running => self.stop(StopReason::TimedOut(self.timeout)),
            Phase::Stopping => {
                self.process.signal(Signal::KILL);
                self.phase = Phase::Killed;
            }
            Phase::Killed => {}
            Phase::Exited => {
                self.process.stdout = None;
                self.process.stderr = None;
                let last = self.lines.finish();
                if let Some(last) = last.filter(|_| !self.ignores_stdout) {
                    self.on_line(last);
                }
            }
        }
    }

    /// Stops the program. The first reason is reported.
    fn stop(&mut self, why: StopReason) {
        self.stop_with(why, Signal::TERM);
    }

    fn stop_with(&mut self, why: StopReason, signal: Signal) {
        self.reading.facts.stop.get_or_insert(why);
        if self.phase == Phase::Running {
            self.end_with(signal);
        }
    }

    fn terminate(&mut self) {
        self.end_with(Signal::TERM);
    }

    /// Asks the program to end. It is killed after the grace period.
    fn end_with(&mut self, signal: Signal) {
        if std::mem::take(&mut self.is_held) {
            // It gets no prompt any more.
            self.outbox.clear();
        }
        self.process.signal(signal);
        self.phase = Phase::Stopping;
        self.due = Instant::now() + self.grace.min(FOR_EVER);
    }

    /// After the process has exited, reads from the pipes end when there was no data for the grace period, or at
    /// the deadline, whichever is earlier.
    fn received(&mut self) {
        if self.phase == Phase::Exited {
            let now = Instant::now();
            self.due = self.deadline.clamp(now, now + self.grace.min(FOR_EVER));
        }
    }

    fn broke(&mut self, what: String) {
        let failure = Failure::new(ErrorKind::RuntimeCrash, what);
        self.reading.facts.broken.get_or_insert(failure);
    }

    /// Closing stdin: the program gets no more input. A server ends then, or is ended.
    fn close_stdin_if_done(&mut self) {
        let ended = self.reading.has_ended();
        let running = self.phase == Phase::Running;
        let kept = self.reading.dialogue.stays_open() && !ended && running;
        if self.outbox.is_empty() && !kept && !self.is_held {
            self.process.stdin = None;
            if self.reading.dialogue.is_server()
                && ended
                && running
                && !self.reading.facts.dismissed
            {
                self.reading.facts.dismissed = true;
                self.due = self.due.min(Instant::now() + DISMISSAL);
            }
        }
    }

    fn on_line(&mut self, raw: String) {
        let ReadLine { events, opens_session, has_end } = self.reading.line(&raw);
        self.expect_exit(has_end, &events);
        // The reply to this line is the prompt.
        self.is_held |= self.holds_prompt && opens_session && self.reading.dialogue.is_server();
        self.deliver(Line { raw: Some(raw), events });
        while let Some(reply) = self.reading.dialogue.reply() {
            self.outbox.extend(reply.bytes());
        }
    }

    /// Decides after each line when the program has to exit: soon after its answer, and later if it may work on.
    fn expect_exit(&mut self, has_end: bool, events: &[ProgramEvent]) {
        let grace = self.grace.min(FOR_EVER);
        if has_end {
            self.works_on = false;
            self.exit_due = Some(Instant::now() + grace);
        } else if self.reading.has_ended() {
            if events.iter().any(ProgramEvent::is_work) {
                self.works_on = true;
                self.exit_due = Some(Instant::now() + grace.max(SILENCE));
            }
        } else if self.reading.dialogue.is_complete() {
            self.exit_due = Some(Instant::now() + grace.max(SILENCE));
        } else {
            self.exit_due = None;
        }
    }

    async fn end(mut self) {
        let exit = self.reading.facts.exit;
        let well = self.reading.facts.dismissed || exit.is_some_and(crate::Exit::is_success);
        let mut events = self.reading.finish(well);
        let stderr = String::from_utf8_lossy(&self.stderr);
        self.reading.facts.stderr = if self.is_stderr_cut {
            self.secrets.redact_end(&stderr)
        } else {
            self.secrets.redact(stderr.into_owned())
        };
        events.push(verdict(self.reading.facts));
        let last = self.secrets.redact_line(Line { raw: None, events });
        // The reader may have been dropped.
        let _ = self.line_sender.send(last).await;
    }
}

/// Reads from a pipe; never completes if it is closed.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(buffer).await,
        None => std::future::pending().await,
    }
}

/// Writes pending data; never completes if there is none or the pipe is closed.
async fn write(pipe: &mut Option<ChildStdin>, bytes: &[u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) if !bytes.is_empty() => pipe.write(bytes).await,
        _ => std::future::pending().await,
    }
}
