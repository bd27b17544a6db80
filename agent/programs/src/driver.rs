//! The task behind a run: one loop over all events of the process.
//!
//! Invariant: the loop reads both output pipes and writes stdin concurrently, so none of them blocks another. Only
//! a reader of the run that is slower than the program delays stdout.
//! Invariant: one deadline covers the whole run. The time after it is limited by the grace period.
//! Invariant: terminal events of the parser are held back until the process has exited; then exactly one is sent.

use std::collections::VecDeque;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use abide_json_integers as integers;
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::ChildStdin;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::command;
use crate::config::{CliConfig, TerminalRule};
use crate::control::{ControlRequest, OpenApprovals};
use crate::dialogue::{Dialogue, Reply};
use crate::environment::{Environment, Secrets};
use crate::event::{Answer, ErrorKind, Failure, Line, NoticeCode, ProgramEvent};
use crate::lines::Lines;
use crate::process::{self, Process};
use crate::process_identity::ProcessIdentity;
use crate::prompt::Prompt;
use crate::run_result::{RunFacts, StopReason, verdict};

/// Maximum size of a read: the capacity of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// Number of bytes at the end of stderr that are kept; error messages are usually at the end.
const STDERR_TAIL_BYTES: usize = 8 * 1024;

/// How long a server that has given its answer may take to end after its stdin was closed. Some servers do not end then.
const DISMISSAL: Duration = Duration::from_secs(2);

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
    Asked(Option<ControlRequest>),
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
    dialogue: Box<dyn Dialogue>,
    rule: TerminalRule,
    timeout: Duration,
    grace: Duration,
    deadline: Instant,
    secrets: Secrets,
    open: OpenApprovals,
    asks: mpsc::UnboundedReceiver<ControlRequest>,
    asks_ended: bool,
    to: mpsc::Sender<Line>,
    abandoned: bool,
    phase: Phase,
    /// The deadline of the phase, if it has one.
    due: Instant,
    /// Data to write to stdin.
    outbox: Vec<u8>,
    /// Whether the prompt is held back: nothing is written to stdin yet, and it stays open.
    is_held: bool,
    /// Whether the program has read any of it.
    reads: bool,
    lines: Lines,
    /// Lines to deliver. While there are any, stdout is not read.
    queue: VecDeque<Line>,
    /// Further output on stdout is ignored.
    deaf: bool,
    stdout_buffer: Box<[u8]>,
    stderr_buffer: Box<[u8]>,
    stderr: Vec<u8>,
    facts: RunFacts,
    fallback: FallbackAnswer,
}

impl Driver {
    /// Starts the process. If that fails, returns the terminal event.
    pub(crate) fn start(
        config: CliConfig,
        prompt: &Prompt,
        mut dialogue: Box<dyn Dialogue>,
        open: OpenApprovals,
        to: mpsc::Sender<Line>,
        asks: mpsc::UnboundedReceiver<ControlRequest>,
    ) -> Result<Self, Box<ProgramEvent>> {
        let environment = Environment::new(&config, std::env::vars_os());
        let refused = |failure| Box::new(ProgramEvent::Error(failure));
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
            dialogue,
            rule: config.terminal,
            timeout: config.timeout,
            grace: config.grace,
            deadline,
            secrets: environment.secrets,
            open,
            asks,
            asks_ended: false,
            to,
            abandoned: false,
            phase: Phase::Running,
            due: deadline,
            outbox: outbox.into_bytes(),
            is_held: true,
            reads: false,
            lines: Lines::new(config.max_output_bytes, config.max_line_bytes),
            queue: VecDeque::new(),
            deaf: false,
            stdout_buffer: buffer(),
            stderr_buffer: buffer(),
            stderr: Vec::new(),
            facts: RunFacts::default(),
            fallback: FallbackAnswer::default(),
        })
    }

    /// The identity of the process.
    pub(crate) fn identity(&self) -> Option<ProcessIdentity> {
        self.process.identity()
    }

    /// Runs the process to its end, and sends the terminal event.
    pub(crate) async fn drive(mut self) {
        while !self.is_over() {
            // A program with continuous output must not prevent the check of the deadline.
            if self.phase != Phase::Exited && Instant::now() >= self.due {
                self.on_time();
            }
            self.close_stdin_if_done();
            match self.wake().await {
                Wake::Asked(ask) => self.on_ask(ask),
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
        tokio::select! {
            biased;
            ask = self.asks.recv(), if !self.asks_ended => Wake::Asked(ask),
            () = self.to.closed(), if !self.abandoned => Wake::Abandoned,
            permit = self.to.reserve(), if delivering => {
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
            () = tokio::time::sleep_until(self.due), if timed => Wake::Time,
        }
    }

    fn on_ask(&mut self, ask: Option<ControlRequest>) {
        match ask {
            Some(ControlRequest::Begin) => self.is_held = false,
            Some(ControlRequest::Cancel) => self.stop(StopReason::Cancelled),
            Some(ControlRequest::Interrupt) => {
                self.facts.interrupted = true;
                match self.dialogue.interrupt() {
                    Some(reply) => self.write(reply),
                    None => self.process.signal(Signal::INT),
                }
            }
            Some(ControlRequest::Decide { request_id, asked, decision }) => {
                let reply = self.dialogue.decide(&request_id, &asked, decision);
                self.write(reply);
            }
            None => self.asks_ended = true,
        }
    }

    fn write(&mut self, reply: Reply) {
        self.outbox.extend(reply.text.bytes());
        let events = self.keep(reply.events);
        if !events.is_empty() {
            self.queue.push_back(Line { raw: None, events });
        }
    }

    fn on_stdout(&mut self, read: io::Result<usize>) {
        self.heard();
        match read {
            Ok(0) => {
                self.process.stdout = None;
                let last = self.lines.finish();
                if let Some(last) = last.filter(|_| !self.deaf) {
                    self.on_line(last);
                }
            }
            Ok(_) if self.deaf => {}
            Ok(bytes) => {
                let mut whole = VecDeque::new();
                let fits = self.lines.push(&self.stdout_buffer[..bytes], &mut whole);
                for line in whole {
                    self.on_line(line);
                }
                if let Err(overflow) = fits {
                    self.deaf = true;
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
        self.heard();
        match read {
            Ok(0) | Err(_) => self.process.stderr = None,
            Ok(bytes) => {
                self.stderr.extend_from_slice(&self.stderr_buffer[..bytes]);
                let surplus = self.stderr.len().saturating_sub(STDERR_TAIL_BYTES);
                self.stderr.drain(..surplus);
            }
        }
    }

    /// A write error is not a failure: the program may have read all that it needs.
    fn on_written(&mut self, written: io::Result<usize>) {
        match written {
            Ok(bytes) => {
                self.outbox.drain(..bytes);
                self.reads = true;
            }
            Err(_) => self.unread(),
        }
    }

    /// The program will not read the rest of its input. If it never read anything, it does not need its input, so
    /// no notice is sent.
    fn unread(&mut self) {
        self.process.stdin = None;
        self.outbox.clear();
        if !self.reads {
            return;
        }
        let notice = ProgramEvent::Notice {
            code: NoticeCode::StdinUnread,
            message: "the program did not read all of its input".to_owned(),
        };
        self.queue.push_back(Line { raw: None, events: vec![notice] });
    }

    fn on_exit(&mut self, status: io::Result<ExitStatus>) {
        match status {
            Ok(status) => self.facts.exit = Some(process::exit(status)),
            Err(error) => self.broke(format!("cannot get its exit status: {error}")),
        }
        self.process.sweep();
        if self.process.stdin.take().is_some() && !self.outbox.is_empty() {
            self.unread();
        }
        self.phase = Phase::Exited;
        self.heard();
    }

    fn on_time(&mut self) {
        match self.phase {
            Phase::Running if self.facts.dismissed => self.terminate(),
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
                if let Some(last) = last.filter(|_| !self.deaf) {
                    self.on_line(last);
                }
            }
        }
    }

    /// Stops the program. The first reason is reported.
    fn stop(&mut self, why: StopReason) {
        self.facts.stop.get_or_insert(why);
        if self.phase == Phase::Running {
            self.terminate();
        }
    }

    fn terminate(&mut self) {
        self.process.signal(Signal::TERM);
        self.phase = Phase::Stopping;
        self.due = Instant::now() + self.grace.min(FOR_EVER);
    }

    /// After the process has exited, reads from the pipes end when there was no data for the grace period, or at
    /// the deadline, whichever is earlier.
    fn heard(&mut self) {
        if self.phase == Phase::Exited {
            let now = Instant::now();
            self.due = self.deadline.clamp(now, now + self.grace.min(FOR_EVER));
        }
    }

    fn broke(&mut self, what: String) {
        let failure = Failure::new(ErrorKind::RuntimeCrash, what);
        self.facts.broken.get_or_insert(failure);
    }

    /// Closing stdin: the program gets no more input. A server ends then, or is ended.
    fn close_stdin_if_done(&mut self) {
        let ended = self.facts.answer.is_some() || self.facts.failure.is_some();
        let running = self.phase == Phase::Running;
        let kept = self.dialogue.stays_open() && !ended && running;
        if self.outbox.is_empty() && !kept && !self.is_held {
            self.process.stdin = None;
            if self.dialogue.is_server() && ended && running && !self.facts.dismissed {
                self.facts.dismissed = true;
                self.due = self.due.min(Instant::now() + DISMISSAL);
            }
        }
    }

    fn on_line(&mut self, raw: String) {
        let events = self.dialogue.parse_line(&raw);
        let ends = events.iter().any(ProgramEvent::is_terminal);
        let mut kept = self.keep(events);
        if let TerminalRule::Line { pointer, equals, text } = &self.rule
            && !ends
        {
            let line = serde_json::from_str::<Value>(&integers::quoted(&raw)).unwrap_or_default();
            if line.pointer(pointer) == Some(equals) {
                let final_text = text.as_ref().and_then(|text| line.pointer(text)?.as_str());
                let text = final_text.unwrap_or(&self.fallback.text).trim_end().to_owned();
                let answer = Answer { text, details: line, ..Answer::default() };
                kept.extend(self.keep(vec![ProgramEvent::Final(answer)]));
            }
        }
        self.queue.push_back(Line { raw: Some(raw), events: kept });
        while let Some(reply) = self.dialogue.reply() {
            self.outbox.extend(reply.bytes());
        }
    }

    /// Records the relevant events, and holds back terminal ones.
    fn keep(&mut self, events: Vec<ProgramEvent>) -> Vec<ProgramEvent> {
        events.into_iter().filter_map(|event| self.keep_one(event)).collect()
    }

    fn keep_one(&mut self, event: ProgramEvent) -> Option<ProgramEvent> {
        self.fallback.note(&event);
        match event {
            ProgramEvent::Final(_)
                if self.facts.answer.is_some() || self.facts.failure.is_some() =>
            {
                let message = "the program gave another answer; the first one is used".to_owned();
                Some(ProgramEvent::Notice { code: NoticeCode::ExtraFinal, message })
            }
            ProgramEvent::Final(answer) => {
                self.facts.answer = Some(answer);
                None
            }
            ProgramEvent::Error(failure) if self.facts.failure.is_some() => {
                let message = failure.message;
                Some(ProgramEvent::Notice { code: NoticeCode::Reported, message })
            }
            ProgramEvent::Error(failure) => {
                self.facts.failure = Some(failure);
                None
            }
            event => {
                self.note(&event);
                Some(event)
            }
        }
    }

    fn note(&mut self, event: &ProgramEvent) {
        match event {
            ProgramEvent::ApprovalRequested { request_id, input, .. } => {
                self.open.asked(request_id.clone(), input.clone());
            }
            ProgramEvent::ApprovalWithdrawn { request_id } => {
                self.open.take(request_id);
            }
            ProgramEvent::Notice { code: NoticeCode::Reported, message } => {
                self.facts.reported = Some(message.clone());
            }
            _ => {}
        }
    }

    async fn end(mut self) {
        let last = self.dialogue.finish();
        let mut events = self.keep(last);
        let well = self.facts.exit.is_some_and(crate::Exit::is_success);
        if self.rule == TerminalRule::ExitZero && well && self.facts.answer.is_none() {
            let text = self.fallback.text.trim_end().to_owned();
            let details = std::mem::take(&mut self.fallback.status);
            self.facts.answer = Some(Answer { text, details, ..Answer::default() });
        }
        let stderr = String::from_utf8_lossy(&self.stderr).into_owned();
        self.facts.stderr = self.secrets.redact(stderr);
        events.push(verdict(self.facts));
        // The reader may have been dropped.
        let _ = self.to.send(Line { raw: None, events }).await;
    }
}

/// The text that serves as an answer if the program has no final line.
#[derive(Debug, Default)]
struct FallbackAnswer {
    /// The agent's last message.
    text: String,
    message: Option<String>,
    /// The last status.
    status: Value,
}

impl FallbackAnswer {
    fn note(&mut self, event: &ProgramEvent) {
        match event {
            ProgramEvent::AssistantDelta { text, message, parent: None } => {
                if self.message != *message {
                    self.message.clone_from(message);
                    self.text.clear();
                }
                self.text.push_str(text);
            }
            ProgramEvent::Status { data } => self.status.clone_from(data),
            _ => {}
        }
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
