//! Lines on stderr. A command writes them at once. The lines of a server wait in a bounded queue, and a thread writes them: a
//! program that has stderr and does not read it holds back nothing but this thread.
//!
//! `tracing-appender` is not used: when its thread hangs at the end of the process, it says so on stderr, and hangs too.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum bytes of the lines that wait, and of those that are being written: some ten thousand records.
const QUEUE_BYTES: usize = 4 << 20;

/// For how long the end of the process waits for the reader of stderr.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The pause before a pipe that does not block, and is full, is tried again.
const FULL_PIPE_PAUSE: Duration = Duration::from_millis(10);

static QUEUE: LazyLock<LineQueue> = LazyLock::new(LineQueue::default);

/// Starts the thread that writes the lines. Without it each line is written at once, so nothing is lost before, or if the thread
/// cannot be started.
pub(crate) fn start_queue() {
    let write = |line: &str| write_whole(&mut io::stderr().lock(), line.as_bytes());
    let thread = thread::Builder::new().name("log".to_owned());
    if thread.spawn(move || QUEUE.write_lines(write, report_dropped)).is_ok() {
        QUEUE.lock().has_writer = true;
    }
}

/// Writes lines, or takes them into the queue. Errors are ignored: there is no other output to report them.
pub(crate) fn write_lines(text: &str) {
    if let Err(lines) = QUEUE.push(format!("{text}\n")) {
        let _ = write_whole(&mut io::stderr().lock(), lines.as_bytes());
    }
}

/// Waits until all lines are written, or for two seconds.
pub(crate) fn flush() {
    QUEUE.flush(LAST_PATIENCE);
}

/// Waits for the lines when it is dropped, see [`flush`].
#[derive(Debug)]
pub(crate) struct FlushGuard;

impl Drop for FlushGuard {
    fn drop(&mut self) {
        flush();
    }
}

/// Returns the number of lines that were not written; it is up to date at any time.
pub(crate) fn dropped_lines() -> Arc<AtomicU64> {
    Arc::clone(&QUEUE.dropped)
}

fn report_dropped(count: u64) {
    tracing::warn!(name: "log_records_dropped", count, "log records were dropped, because stderr was not read or could not be written");
}

/// Writes all bytes. The program that started this one may have made its end of a pipe non-blocking, and this one with it.
fn write_whole(stderr: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stderr.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(FULL_PIPE_PAUSE),
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// Lines between the threads of a process and the one that writes them.
#[derive(Debug, Default)]
struct LineQueue {
    state: Mutex<QueueState>,
    /// Notified when there is a line.
    filled: Condvar,
    /// Notified when all lines are written.
    written: Condvar,
    /// All lines that were not written.
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct QueueState {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines that had no room since these lines were taken into the queue.
    dropped: u64,
    has_writer: bool,
    is_writing: bool,
}

/// The lines that waited, and how many had no room after them.
struct LineBatch {
    lines: VecDeque<String>,
    dropped: u64,
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes lines, or drops them if there is no room.
    ///
    /// # Errors
    /// The lines, if no thread writes the queue.
    fn push(&self, line: String) -> Result<(), String> {
        let mut state = self.lock();
        if !state.has_writer {
            return Err(line);
        }
        if !state.lines.is_empty() && state.bytes + line.len() > QUEUE_BYTES {
            state.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        state.bytes += line.len();
        state.lines.push_back(line);
        self.filled.notify_one();
        Ok(())
    }

    /// Writes the lines in their order, for ever. `report` logs how many are missing, where they are missing.
    fn write_lines(&self, mut write: impl FnMut(&str) -> io::Result<()>, report: impl Fn(u64)) {
        // Lines that could not be written since the last one that could.
        let mut failed = 0;
        loop {
            let LineBatch { lines, dropped } = self.take();
            // The queue is empty now, so the record is the next line after those of the batch.
            if dropped > 0 {
                report(dropped);
            }
            for line in lines {
                match write(&line) {
                    Ok(()) if failed > 0 => report(mem::take(&mut failed)),
                    Ok(()) => {}
                    // A full disk, or a pipe that nobody can read any more.
                    Err(_) => {
                        failed += 1;
                        self.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Waits for lines, and takes all.
    fn take(&self) -> LineBatch {
        let mut state = self.lock();
        while state.lines.is_empty() {
            state.is_writing = false;
            self.written.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        state.bytes = 0;
        LineBatch { lines: mem::take(&mut state.lines), dropped: mem::take(&mut state.dropped) }
    }

    fn flush(&self, patience: Duration) {
        let is_unwritten = |state: &mut QueueState| state.is_writing || !state.lines.is_empty();
        drop(self.written.wait_timeout_while(self.lock(), patience, is_unwritten));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// The time after which a test fails.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A queue with a thread that writes a line only when it is told to, and whether that succeeds.
    struct Fixture {
        queue: Arc<LineQueue>,
        attempts: Receiver<String>,
        results: Sender<io::Result<()>>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let queue = Arc::new(LineQueue::default());
            queue.lock().has_writer = true;
            let (tell, attempts) = channel();
            let (results, told) = channel::<io::Result<()>>();
            let written = Arc::clone(&queue);
            thread::spawn(move || {
                let write = |line: &str| {
                    let _ = tell.send(line.to_owned());
                    // Without the test, all can be written.
                    told.recv().unwrap_or(Ok(()))
                };
                let reported = Arc::clone(&written);
                written.write_lines(write, |count| {
                    reported.push(format!("{count} dropped")).expect("there is a writer");
                })
            });
            Fixture { queue, attempts, results }
        }

        fn push(&self, line: impl Into<String>) {
            self.queue.push(line.into()).expect("there is a writer");
        }

        fn attempt(&self) -> String {
            self.attempts.recv_timeout(PATIENCE).expect("a line is written")
        }

        fn let_pass(&self, result: io::Result<()>) {
            self.results.send(result).expect("it is written");
        }
    }

    #[test]
    fn without_a_thread_a_line_is_not_taken() {
        let queue = LineQueue::default();
        assert_eq!(queue.push("one".to_owned()), Err("one".to_owned()));
        queue.flush(PATIENCE);
    }

    #[test]
    fn lines_keep_their_order_and_missing_ones_are_told_where_they_are_missing() {
        let fixture = Fixture::new();
        fixture.push("first");
        // Its thread hangs with it, as for a reader that does not read.
        assert_eq!(fixture.attempt(), "first");
        let line = "x".repeat(QUEUE_BYTES / 4);
        for _ in 0..7 {
            fixture.push(line.clone());
        }
        assert_eq!(fixture.queue.dropped.load(Ordering::Relaxed), 3);
        fixture.let_pass(Ok(()));
        for _ in 0..4 {
            assert_eq!(fixture.attempt().len(), line.len());
            fixture.let_pass(Ok(()));
        }
        assert_eq!(fixture.attempt(), "3 dropped");
        fixture.push("after");
        fixture.let_pass(Ok(()));
        assert_eq!(fixture.attempt(), "after");
        fixture.let_pass(Ok(()));
        fixture.queue.flush(PATIENCE);
        assert!(fixture.queue.lock().lines.is_empty());
    }

    #[test]
    fn lines_that_cannot_be_written_are_told_when_one_can_be() {
        let fixture = Fixture::new();
        for line in ["one", "two", "three"] {
            fixture.push(line);
        }
        for (line, result) in [
            ("one", Err(ErrorKind::StorageFull.into())),
            ("two", Err(ErrorKind::StorageFull.into())),
            ("three", Ok(())),
            ("2 dropped", Ok(())),
        ] {
            assert_eq!(fixture.attempt(), line);
            fixture.let_pass(result);
        }
        assert_eq!(fixture.queue.dropped.load(Ordering::Relaxed), 2);
    }

    /// The end of a process does not wait for a reader that never reads.
    #[test]
    fn a_flush_ends_while_the_thread_hangs() {
        let fixture = Fixture::new();
        fixture.push("one");
        assert_eq!(fixture.attempt(), "one");
        fixture.queue.flush(Duration::from_millis(1));
        assert!(fixture.queue.lock().is_writing);
    }

    /// A pipe takes a part, is full, is interrupted, and takes the rest.
    #[test]
    fn a_line_is_written_whole_to_a_pipe_that_does_not_block() {
        struct Pipe(Vec<u8>, Vec<io::Result<usize>>);

        impl Write for Pipe {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = self.1.pop().unwrap_or(Ok(bytes.len()))?.min(bytes.len());
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let results =
            vec![Err(ErrorKind::Interrupted.into()), Err(ErrorKind::WouldBlock.into()), Ok(3)];
        let mut pipe = Pipe(Vec::new(), results);
        write_whole(&mut pipe, b"a line\n").expect("it is written");
        assert_eq!(pipe.0, b"a line\n");
        let mut closed = Pipe(Vec::new(), vec![Err(ErrorKind::BrokenPipe.into())]);
        assert!(write_whole(&mut closed, b"a line\n").is_err());
    }
}
