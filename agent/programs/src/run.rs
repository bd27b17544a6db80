//! A run as its caller sees it: a stream of lines that ends with one terminal event, and a handle to
//! decide, interrupt and cancel. What happens behind it is the driver's.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::Stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::config::{CliConfig, InputFormat};
use crate::dialogue::Decision;
use crate::driver::Driver;
use crate::event::{ErrorKind, Failure, ProgramEvent};
use crate::parser::Parser;
use crate::program;
use crate::prompt::Prompt;

/// Lines between the driver and its reader. A reader that is slower than the program holds it back.
const LINES_WAITING_MAX: usize = 16;

/// A line of the program's stdout and what it says. What says something without a line has none: notices
/// of ours, and the terminal event, which comes last and alone knows how the process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The line as it was written, without its newline; what is not UTF-8 in it is replaced.
    pub raw: Option<String>,
    /// Its events in order; none if the line says nothing that is understood.
    pub events: Vec<ProgramEvent>,
}

/// Starts a program and asks it. It never fails: what goes wrong is the terminal event.
///
/// Without a parser the one for the program is used: see [`Program::of`](crate::Program::of).
///
/// # Panics
/// Outside of a tokio runtime with time and IO.
pub fn run(config: CliConfig, prompt: Prompt, parser: Option<Box<dyn Parser>>) -> Running {
    let (lines, receiver) = mpsc::channel(LINES_WAITING_MAX);
    let (asks, asked) = mpsc::unbounded_channel();
    let open = Open::default();
    let handle = Handle { asks, open: open.clone(), input: config.input_format };
    let parser = parser.unwrap_or_else(|| program::parser(&config));
    match Driver::start(config, &prompt, parser, open, lines.clone(), asked) {
        Ok(driver) => drop(tokio::spawn(driver.drive())),
        Err(end) => {
            let line = Line { raw: None, events: vec![*end] };
            lines.try_send(line).expect("the channel is new, so it has room");
        }
    }
    Running { lines: receiver, handle, ended: false }
}

/// A run. It is a stream of [`Line`]s; the last event of the last one is terminal, and then the process
/// is gone with all that it started. Dropped before that, the run is cancelled in the background.
#[derive(Debug)]
pub struct Running {
    lines: mpsc::Receiver<Line>,
    handle: Handle,
    ended: bool,
}

impl Running {
    /// Decides, interrupts and cancels while the stream is read elsewhere.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// See [`Handle::cancel`].
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// See [`Handle::interrupt`].
    pub fn interrupt(&self) {
        self.handle.interrupt();
    }

    /// See [`Handle::answer`].
    ///
    /// # Errors
    /// Nobody waits for that decision.
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
        // The driver says something last, unless it panicked, say in a parser: that is an end too.
        let line = line.unwrap_or_else(|| {
            let failure = Failure::new(ErrorKind::RuntimeCrash, "the run itself failed");
            Line { raw: None, events: vec![ProgramEvent::Error(failure)] }
        });
        self.ended = line.events.last().is_some_and(ProgramEvent::is_terminal);
        Poll::Ready(Some(line))
    }
}

/// Approvals that are asked for and not decided, with the arguments asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Open(Arc<Mutex<BTreeMap<String, Value>>>);

impl Open {
    pub(crate) fn asked(&self, request_id: String, input: Value) {
        self.lock().insert(request_id, input);
    }

    /// Takes one out: whoever gets it is the one who decides it.
    pub(crate) fn take(&self, request_id: &str) -> Option<Value> {
        self.lock().remove(request_id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is asked of a driver from outside.
#[derive(Debug)]
pub(crate) enum Ask {
    Decide { request_id: String, asked: Value, decision: Decision },
    Interrupt,
    Cancel,
}

/// The reins of a run, for as many as want to hold them.
#[derive(Clone, Debug)]
pub struct Handle {
    asks: mpsc::UnboundedSender<Ask>,
    open: Open,
    input: InputFormat,
}

impl Handle {
    /// Ends the run: SIGTERM to the process group, SIGKILL after the grace. The run then ends with
    /// `cancelled`, whatever the program had said by then. Again, or too late, it does nothing.
    pub fn cancel(&self) {
        let _ = self.asks.send(Ask::Cancel);
    }

    /// Asks the program to leave off and say its last word, which it need not do: by its protocol where
    /// its input is `stream-json`, else by SIGINT. A failure that follows is told as `cancelled`.
    pub fn interrupt(&self) {
        let _ = self.asks.send(Ask::Interrupt);
    }

    /// Decides what a [`ProgramEvent::ApprovalRequested`] asks. The first decision counts.
    ///
    /// # Errors
    /// Nobody waits for that decision, or nobody could hear it.
    pub fn answer(&self, request_id: &str, decision: Decision) -> Result<(), DecisionError> {
        if self.input == InputFormat::Text {
            return Err(DecisionError::Deaf);
        }
        let not_open = || DecisionError::NotOpen(request_id.to_owned());
        let asked = self.open.take(request_id).ok_or_else(not_open)?;
        let request_id = request_id.to_owned();
        let ask = Ask::Decide { request_id, asked, decision };
        self.asks.send(ask).map_err(|_| DecisionError::Ended)
    }
}

/// Why a decision reaches nobody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// It was not asked for, is decided already, or was withdrawn.
    #[error("no approval {0} is open")]
    NotOpen(String),
    /// The program's stdin is closed.
    #[error(
        "the program takes no decisions: its input_format is text, and would have to be stream-json"
    )]
    Deaf,
    /// The run is over.
    #[error("the run is over")]
    Ended,
}

impl DecisionError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotOpen(_) => "approval_not_open",
            Self::Deaf => "input_closed",
            Self::Ended => "run_over",
        }
    }
}
