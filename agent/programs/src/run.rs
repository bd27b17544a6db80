//! The API of a run: a stream of lines that ends with one terminal event, and a handle to decide, interrupt and
//! cancel. The driver does the work.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::command;
use crate::config::CliConfig;
use crate::control::{ControlRequest, EndSignal, OpenApprovals};
use crate::dialogue::Decision;
use crate::driver::Driver;
use crate::event::{ErrorKind, Failure, Line, ProgramEvent};
use crate::parser::Parser;
use crate::process_identity::ProcessIdentity;
use crate::prompt::Prompt;

/// Capacity of the channel between the driver and its reader. A slow reader delays the program.
const LINES_WAITING_MAX: usize = 16;

/// Starts a program with a prompt. It does not fail: errors are reported as the terminal event.
///
/// Without a parser, the one of the configuration is used, else the one for the detected program: see
/// [`Program::detect`](crate::Program::detect). A configuration that names a parser needs it here: see
/// [`Parsers`](crate::Parsers).
///
/// # Panics
/// Outside of a tokio runtime with time and IO enabled.
pub fn run(config: CliConfig, prompt: Prompt, parser: Option<Box<dyn Parser>>) -> Running {
    let running = spawn_paused(config, prompt, parser);
    running.send_prompt();
    running
}

/// As [`run`], but the program gets its prompt only after [`Running::send_prompt`], so that its identity can be stored
/// before it does anything that depends on the prompt.
///
/// # Panics
/// As [`run`].
pub fn spawn_paused(config: CliConfig, prompt: Prompt, parser: Option<Box<dyn Parser>>) -> Running {
    let (lines, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let (request_sender, requests) = mpsc::unbounded_channel();
    let open_approvals = OpenApprovals::default();
    let handle = RunHandle {
        requests: request_sender,
        open_approvals: open_approvals.clone(),
        takes_decisions: config.takes_decisions(),
    };
    let mut process = None;
    let started = command::dialogue(&config, parser)
        .map_err(|why| {
            let failure = Failure::new(ErrorKind::CapabilityUnsupported, why);
            Box::new(ProgramEvent::Error(failure))
        })
        .and_then(|dialogue| {
            Driver::start(config, &prompt, dialogue, open_approvals, lines.clone(), requests)
        });
    match started {
        Ok(driver) => {
            process = driver.identity();
            drop(tokio::spawn(driver.drive()));
        }
        Err(end) => {
            let line = Line { raw: None, events: vec![*end] };
            lines.try_send(line).expect("the channel is empty");
        }
    }
    Running { lines: receiver, handle, process, ended: false }
}

/// A run: a stream of [`Line`]s. The last event of the last line is terminal; by then, the process group has ended.
/// Dropping the run cancels it in the background.
#[derive(Debug)]
pub struct Running {
    lines: mpsc::Receiver<Line>,
    handle: RunHandle,
    process: Option<ProcessIdentity>,
    ended: bool,
}

impl Running {
    /// Returns a handle to decide, interrupt and cancel while the stream is read elsewhere.
    #[must_use]
    pub fn handle(&self) -> RunHandle {
        self.handle.clone()
    }

    /// Returns the identity of the program's process group; `None` if it did not start, or the system does not show it.
    #[must_use]
    pub fn process(&self) -> Option<&ProcessIdentity> {
        self.process.as_ref()
    }

    /// Lets a program that [`spawn_paused`] has held back open its session. A program with a protocol of its own (ACP,
    /// Codex's app server) gets its prompt only at [`Running::send_prompt`]. It reports its session before that
    /// ([`ProgramEvent::SessionId`]), so the session can be stored before the program does anything. Any other program
    /// gets its prompt now.
    pub fn open_session(&self) {
        let _ = self.handle.requests.send(ControlRequest::OpenSession);
    }

    /// Gives the program the prompt that [`spawn_paused`] has held back.
    pub fn send_prompt(&self) {
        let _ = self.handle.requests.send(ControlRequest::SendPrompt);
    }

    /// See [`RunHandle::cancel`].
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// See [`RunHandle::end`].
    pub fn end(&self, signal: EndSignal) {
        self.handle.end(signal);
    }

    /// See [`RunHandle::interrupt`].
    pub fn interrupt(&self) {
        self.handle.interrupt();
    }

    /// See [`RunHandle::answer`].
    ///
    /// # Errors
    /// The decision is not pending.
    pub fn answer(&self, request_id: &str, decision: Decision) -> Result<(), DecisionError> {
        self.handle.answer(request_id, decision)
    }
}

impl Stream for Running {
    type Item = Line;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Line>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let line = std::task::ready!(self.lines.poll_recv(context));
        // The driver always sends a terminal event, unless it panics, for example in a parser.
        let line = line.unwrap_or_else(|| {
            let failure = Failure::new(ErrorKind::RuntimeCrash, "the run's driver panicked");
            Line { raw: None, events: vec![ProgramEvent::Error(failure)] }
        });
        self.ended = line.events.last().is_some_and(ProgramEvent::is_terminal);
        Poll::Ready(Some(line))
    }
}

/// A cloneable handle to control a run.
#[derive(Clone, Debug)]
pub struct RunHandle {
    requests: mpsc::UnboundedSender<ControlRequest>,
    open_approvals: OpenApprovals,
    takes_decisions: bool,
}

impl RunHandle {
    /// Ends the run: SIGTERM to the process group, and SIGKILL after the grace period. The run then ends with
    /// `cancelled`, regardless of its output. Repeated or late calls have no effect.
    pub fn cancel(&self) {
        self.end(EndSignal::Terminate);
    }

    /// As [`RunHandle::cancel`], with another signal, such as the one that this process has received.
    pub fn end(&self, signal: EndSignal) {
        let _ = self.requests.send(ControlRequest::Cancel(signal));
    }

    /// Asks the program to stop and to give the answer that it has: by a message if it takes one (ACP, Codex's app
    /// server, Claude Code with the input format `stream-json`), else with SIGINT. The program may ignore it. A failure
    /// after that is reported as `cancelled`.
    pub fn interrupt(&self) {
        let _ = self.requests.send(ControlRequest::Interrupt);
    }

    /// Decides about a [`ProgramEvent::ApprovalRequested`]. The first decision counts.
    ///
    /// # Errors
    /// The decision is not pending, or the program cannot receive it.
    pub fn answer(&self, request_id: &str, decision: Decision) -> Result<(), DecisionError> {
        if !self.takes_decisions {
            return Err(DecisionError::NotInteractive);
        }
        let input = self
            .open_approvals
            .take(request_id)
            .ok_or_else(|| DecisionError::NotOpen(request_id.to_owned()))?;
        let request_id = request_id.to_owned();
        let decide = ControlRequest::Decide { request_id, input, decision };
        self.requests.send(decide).map_err(|_| DecisionError::Ended)
    }
}

/// Why a decision cannot be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// It was not requested, is already decided, or was withdrawn.
    #[error("approval {0} is not pending")]
    NotOpen(String),
    /// The program's stdin is closed.
    #[error("the program does not accept decisions: its input is text")]
    NotInteractive,
    /// The run is over.
    #[error("the run is over")]
    Ended,
}

impl DecisionError {
    /// Returns the stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotOpen(_) => "approval_not_open",
            Self::NotInteractive => "input_closed",
            Self::Ended => "run_over",
        }
    }
}
