//! The input of a conversation: lines of stdin, and Ctrl-C.

use std::collections::VecDeque;
use std::future::pending;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use abide_schema::{Code, Refusal, limits};
use rustix::termios::QueueSelector;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::pasted::{Block, LINE_BYTES, PasteMarks, PastedLines};
use crate::agent::editor::{self, Edited};
use crate::failure::Failure;
use crate::output::note;
use crate::printable::Printable;

/// Lines that are read before they are needed.
const READ_AHEAD: usize = 16;

/// The input.
#[derive(Debug)]
pub(in crate::agent) enum Typed {
    /// A line, without its end.
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// The end of the input.
    End,
}

/// Stdin and Ctrl-C.
pub(in crate::agent) struct Input {
    lines: mpsc::Receiver<io::Result<Block>>,
    gate: Arc<ReadGate>,
    /// The blocks that were taken from the thread that reads them.
    received: u64,
    /// Pasted texts are marked until the conversation ends.
    marks: Option<PasteMarks>,
    /// Lines that were typed before a question.
    typed_ahead: VecDeque<String>,
    /// How the call of the last question was decided elsewhere, until a line is typed.
    decided: Option<String>,
    /// `None` where Ctrl-C ends the process.
    interrupts: Option<mpsc::Receiver<()>>,
    presses: InterruptCount,
    is_terminal: bool,
    /// Whether a person is asked to type.
    is_typing: watch::Sender<bool>,
}

/// Lets the thread that reads stdin read ahead, or only what a question asks for: while it waits for a line it would take what is
/// typed into an editor, which uses the same terminal.
#[derive(Debug, Default)]
struct ReadGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    reads_ahead: bool,
    /// The blocks that the thread has read.
    read: u64,
    /// The thread may read until there are so many.
    requested: u64,
}

impl ReadGate {
    fn update(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Waits until the thread may read.
    fn wait(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.changed
                .wait_while(state, |state| !state.reads_ahead && state.read >= state.requested),
        );
    }
}

/// How often Ctrl-C was pressed since the last line or answer.
#[derive(Clone, Debug, Default)]
struct InterruptCount(Arc<AtomicU32>);

/// The only listener for Ctrl-C. Two listeners would not see the same number of presses: the system merges presses that
/// a listener has not read yet.
pub(super) struct InterruptListener {
    signal: Signal,
    presses: InterruptCount,
    sender: mpsc::Sender<()>,
}

impl InterruptListener {
    /// Passes each press to the input. Completes when Ctrl-C was pressed twice.
    pub(super) async fn pressed_twice(mut self) {
        while self.signal.recv().await.is_some() {
            if self.presses.0.fetch_add(1, Ordering::Relaxed) > 0 {
                return;
            }
            // The first press after a reset may still be unread: it stands for this one as well.
            let _ = self.sender.try_send(());
        }
    }
}

impl Input {
    /// Reads stdin in a thread of its own: the process can end while the thread waits for a line.
    ///
    /// # Errors
    /// The process cannot handle Ctrl-C.
    pub(super) fn new() -> Result<(Input, InterruptListener), Failure> {
        let mut input = Input::from_stdin();
        let signal = signal(SignalKind::interrupt())
            .map_err(|why| Failure::system("Ctrl-C cannot be handled", &why))?;
        let (sender, interrupts) = mpsc::channel(1);
        input.interrupts = Some(interrupts);
        input.marks = PasteMarks::enable();
        input.read_ahead();
        let listener = InterruptListener { signal, presses: input.presses.clone(), sender };
        Ok((input, listener))
    }

    /// Reads stdin in a thread of its own. Ctrl-C ends the process.
    pub(in crate::agent) fn from_stdin() -> Input {
        let (sender, lines) = mpsc::channel(READ_AHEAD);
        let gate = Arc::new(ReadGate::default());
        let of_thread = Arc::clone(&gate);
        thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            let is_terminal = stdin.is_terminal();
            let mut pasted = PastedLines::default();
            loop {
                of_thread.wait();
                let mut line = Vec::new();
                // One byte more than allowed, so that a longer line is noticed without being read.
                let max = limits::MESSAGE_BYTES.saturating_sub(pasted.bytes()) as u64 + 1;
                let read = stdin.by_ref().take(max).read_until(b'\n', &mut line);
                let is_last = matches!(read, Ok(0) | Err(_));
                let block = match read {
                    Ok(0) => pasted.finish().map(Ok),
                    Ok(_) if is_terminal => pasted.add(&line).map(Ok),
                    Ok(_) => Some(Ok(Block::Whole(line))),
                    Err(why) => Some(Err(why)),
                };
                let is_gone = block.is_some_and(|block| {
                    of_thread.update(|state| state.read += 1);
                    sender.blocking_send(block).is_err()
                });
                if is_last || is_gone {
                    return;
                }
            }
        });
        Input {
            lines,
            gate,
            received: 0,
            marks: None,
            typed_ahead: VecDeque::new(),
            decided: None,
            interrupts: None,
            presses: InterruptCount::default(),
            is_terminal: io::stdin().is_terminal(),
            is_typing: watch::Sender::new(false),
        }
    }

    /// Reads lines before they are needed, as while an answer is shown.
    pub(in crate::agent) fn read_ahead(&self) {
        self.gate.update(|state| state.reads_ahead = true);
    }

    /// Opens a text in the editor of the user, after a question was answered.
    pub(in crate::agent) async fn edit(&mut self, text: &str) -> Edited {
        let had_marks = self.marks.take().is_some();
        let edited = editor::edit(text).await;
        if had_marks {
            // An editor ends them.
            self.marks = PasteMarks::enable();
        }
        edited
    }

    pub(in crate::agent) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether a person is asked to type, from now on.
    pub(super) fn subscribe_to_typing(&self) -> watch::Receiver<bool> {
        self.is_typing.subscribe()
    }

    /// The next line.
    ///
    /// # Errors
    /// Stdin cannot be read, or the line is longer than a message.
    pub(super) async fn next_line(&mut self) -> Result<Typed, Failure> {
        self.read_ahead();
        loop {
            let typed = match self.typed_ahead.pop_front() {
                Some(line) => Typed::Line(line),
                None => self.read_typed().await?,
            };
            match typed {
                Typed::Line(line) if self.is_late(&line) => {}
                typed => return Ok(typed),
            }
        }
    }

    /// The call of the question was decided elsewhere: an answer that is typed now is too late.
    pub(in crate::agent) fn decided_elsewhere(&mut self, how: String) {
        self.decided = Some(how);
    }

    /// Whether a line is the late answer to a question; if so, says that it is ignored.
    fn is_late(&mut self, line: &str) -> bool {
        let how = self.decided.take();
        match how.filter(|_| is_answer(line)) {
            Some(how) => {
                note(Printable::line(&format!("ignored: {how}")));
                true
            }
            None => false,
        }
    }

    /// The next message. A line that ends with a backslash continues in the next line.
    ///
    /// # Errors
    /// As [`Input::next_line`].
    pub(super) async fn next_message(&mut self) -> Result<Typed, Failure> {
        let mut message = String::new();
        loop {
            match self.next_line().await? {
                Typed::Line(line) => match line.strip_suffix('\\') {
                    Some(line) if self.is_terminal => message += &format!("{line}\n"),
                    _ => return Ok(Typed::Line(message + &line)),
                },
                other => return Ok(other),
            }
        }
    }

    /// Asks a question on stderr. A line that was typed before is not its answer.
    ///
    /// # Errors
    /// As [`Input::next_line`].
    pub(in crate::agent) async fn ask(&mut self, question: &str) -> Result<Typed, Failure> {
        self.gate.update(|state| state.reads_ahead = false);
        if self.is_terminal && self.interrupts.is_none() {
            // A run reads from its first question on. Until then the terminal holds what is typed: it approves nothing.
            rustix::termios::tcflush(io::stdin(), QueueSelector::IFlush)
                .map_err(io::Error::from)?;
        }
        if self.interrupts.is_some() || self.decided.is_some() {
            while let Ok(block) = self.lines.try_recv() {
                self.received += 1;
                let Some(line) = decode_block(block?)? else { continue };
                if !self.is_late(&line) {
                    self.typed_ahead.push_back(line);
                }
            }
        }
        self.decided = None;
        if self.lines.is_closed() && self.lines.is_empty() {
            return Ok(Typed::End);
        }
        {
            let mut out = io::stderr().lock();
            write!(out, "{}", Printable::line(question))?;
            out.flush()?;
        }
        self.read_typed().await
    }

    /// A run has ended. An answer that was typed meanwhile had no question, so it is no message either.
    ///
    /// # Errors
    /// As [`Input::next_line`].
    pub(super) fn discard_answers_after_run(&mut self) -> Result<(), Failure> {
        self.forget_presses();
        if !self.is_terminal || self.decided.is_some() {
            return Ok(());
        }
        while let Ok(block) = self.lines.try_recv() {
            self.received += 1;
            self.typed_ahead.extend(decode_block(block?)?);
        }
        self.typed_ahead.retain(|line| {
            if is_answer(line) {
                let line = line.trim();
                note(Printable::line(&format!("ignored: {line} was typed before a question")));
            }
            !is_answer(line)
        });
        Ok(())
    }

    /// Waits for Ctrl-C.
    pub(super) async fn wait_for_interrupt(&mut self) {
        recv_interrupt(&mut self.interrupts).await;
    }

    /// An answer is complete: the next Ctrl-C is the first one again.
    fn forget_presses(&self) {
        self.presses.0.store(0, Ordering::Relaxed);
    }

    async fn read_typed(&mut self) -> Result<Typed, Failure> {
        self.is_typing.send_replace(self.is_terminal);
        let typed = self.read_next_typed().await;
        self.is_typing.send_replace(false);
        typed
    }

    async fn read_next_typed(&mut self) -> Result<Typed, Failure> {
        loop {
            self.gate.update(|state| state.requested = self.received + 1);
            tokio::select! {
                () = recv_interrupt(&mut self.interrupts) => return Ok(Typed::Interrupt),
                block = self.lines.recv() => match block {
                    Some(block) => {
                        self.received += 1;
                        self.forget_presses();
                        if let Some(line) = decode_block(block?)? {
                            return Ok(Typed::Line(line));
                        }
                    }
                    None => return Ok(Typed::End),
                },
            }
        }
    }
}

/// Waits for Ctrl-C, where it does not end the process.
async fn recv_interrupt(interrupts: &mut Option<mpsc::Receiver<()>>) {
    match interrupts {
        // The listener lives as long as the conversation.
        Some(interrupts) => drop(interrupts.recv().await),
        None => pending().await,
    }
}

/// Whether a line answers a question.
fn is_answer(line: &str) -> bool {
    matches!(&*line.trim().to_lowercase(), "y" | "yes" | "n" | "no")
}

/// A line as text, without its end; `None`, with a message, if the terminal has cut it. Invalid UTF-8 is replaced.
fn decode_block(block: Block) -> Result<Option<String>, Failure> {
    let line = match block {
        Block::Whole(line) => line,
        Block::Cut => {
            note(format!(
                "not sent: the terminal has cut a line after {LINE_BYTES} bytes; write the text to a file of the \
                 workspace, and name the file, or pipe it:  abide agent chat … < FILE"
            ));
            return Ok(None);
        }
    };
    if line.len() > limits::MESSAGE_BYTES {
        let detail = format!("a line has more than {} bytes", limits::MESSAGE_BYTES);
        let hint = "write the text to a file of the workspace, and name the file";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint).into());
    }
    let text = String::from_utf8_lossy(&line);
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}
