//! A pool of reader threads: each has a connection, all share one queue. A thread opens its connection for its first query,
//! because opening one reads the whole schema. The first idle thread gets a query, so a process with one query at a time has
//! one connection.
//!
//! *Invariant:* a query that panics affects only its caller. Its connection is replaced by a
//! new one.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use abide_schema::{Code, Refusal, SEE_LOG, limits};
use abide_store::{InterruptHandle, Reader, Store, StoreError};
use tokio::sync::oneshot;

use crate::commit::fair_queue::Turn;
use crate::commit::jobs::WriterJob;
use crate::commit::open_rows::VisibleRows;
use crate::commit::queue::{Queue, Rejected, closing};
use crate::fault_points::FaultPoint;
use crate::health::Health;
use crate::ports::{EngineThread, StepScheduler};
use crate::queries::cancellation::Cancellation;
use crate::queries::reader_drain::ReaderDrain;
use crate::threads::{NewThread, Threads, panic_text};

/// A job for a reader.
pub(crate) type ReaderJob = Box<dyn FnOnce(&mut Reader) + Send>;

/// Opens another reader connection.
pub(crate) type OpenReader = dyn Fn() -> Result<Reader, StoreError> + Send + Sync;

/// The pool. Its threads end when it is closed.
pub(crate) struct Readers {
    queue: Arc<Queue<ReaderJob>>,
    interrupt_handles: Arc<Mutex<InterruptHandles>>,
    visible: Arc<VisibleRows>,
    /// The writer's queue.
    jobs: Arc<Queue<WriterJob>>,
    health: Arc<Health>,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("waiting", &self.queue.weight()).finish()
    }
}

impl Readers {
    /// Returns a pool and its threads, to be started: one for each connection. `None` is opened with `open`, and so is the
    /// next one of a thread whose query has panicked.
    pub(crate) fn new(
        name: &str,
        readers: Vec<Option<Reader>>,
        open: &Arc<OpenReader>,
        visible: &Arc<VisibleRows>,
        threads: &Threads,
    ) -> (Readers, Vec<NewThread>) {
        let queue = Queue::shared(readers.len(), limits::READER_QUEUE, limits::READERS_OF_A_CALLER);
        let queue: Arc<Queue<ReaderJob>> = Arc::new(queue);
        let all =
            readers.iter().map(|reader| reader.as_ref().map(Reader::interrupt_handle)).collect();
        let interrupt_handles = Arc::new(Mutex::new(InterruptHandles { all, stopped: false }));
        let mut new_threads = Vec::with_capacity(readers.len());
        for (number, reader) in readers.into_iter().enumerate() {
            let serving = ReaderThread {
                number,
                reader,
                open_reader: Arc::clone(open),
                interrupt_handles: Arc::clone(&interrupt_handles),
                scheduler: Arc::clone(&threads.scheduler),
                drain: Arc::clone(&threads.drain),
            };
            let from = Arc::clone(&queue);
            let left = Arc::clone(&queue);
            let name = format!("abide-{name}-{number}");
            let stage = EngineThread::Reader(number);
            new_threads.push(threads.named_thread(
                stage,
                name,
                move || serving.run(&from),
                move || left.abandon(),
            ));
        }
        let visible = Arc::clone(visible);
        let jobs = Arc::clone(&threads.jobs);
        let health = Arc::clone(&threads.health);
        (Readers { queue, interrupt_handles, visible, jobs, health }, new_threads)
    }

    /// Runs something on a reader, in a turn. It counts as `weight` queries in
    /// the queue. Its snapshots have every group that was finished before the call.
    ///
    /// If the future is dropped, the work does not start, or its running statement is interrupted: a caller that has
    /// gone occupies no reader.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        turn: &Turn,
        weight: usize,
        work: impl FnOnce(&mut Reader) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let (cancellation, _cancel) = Cancellation::new();
        let job: ReaderJob = Box::new(move |reader| {
            if cancellation.begin(reader) {
                let done = work(reader);
                cancellation.end();
                // The caller may have gone; then the result is dropped.
                let _ = reply.send(done);
            }
        });
        self.send(turn, weight, job).await?;
        answer.await.map_err(|_| self.health.refusal().unwrap_or_else(given_up))
    }

    /// Queues a job, after SQLite has committed what it must see.
    async fn send(&self, turn: &Turn, weight: usize, job: ReaderJob) -> Result<(), Refusal> {
        // Before the commit: a query without room must not cause one.
        if !self.queue.accepts(turn, weight) {
            return Err(overloaded());
        }
        self.catch_up().await?;
        self.queue.push(Some(turn), job, weight).map_err(|rejected| match rejected {
            Rejected::Full(_) => overloaded(),
            Rejected::Closed(_) => self.closed(),
        })
    }

    /// Returns when SQLite has committed every group that the writer had finished before the call.
    async fn catch_up(&self) -> Result<(), Refusal> {
        if !self.visible.is_behind() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.jobs.push(None, WriterJob::CommitRows(reply), 0).map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())?.map_err(hint_for_query)
    }

    /// Returns the refusal of a job for which the queue is closed.
    fn closed(&self) -> Refusal {
        self.health.refusal().unwrap_or_else(closing)
    }

    /// The queue of the threads.
    pub(crate) fn queue(&self) -> &Arc<Queue<ReaderJob>> {
        &self.queue
    }

    /// Accepts no more jobs and interrupts running queries. Callers may retry.
    pub(crate) fn close(&self) {
        self.queue.close();
        let mut interrupt_handles =
            self.interrupt_handles.lock().unwrap_or_else(PoisonError::into_inner);
        interrupt_handles.stopped = true;
        interrupt_handles.all.iter().flatten().for_each(InterruptHandle::stop);
    }
}

/// Opens a reader connection.
pub(crate) fn open_reader(store: &Store, set_up: &[String]) -> Result<Reader, StoreError> {
    let reader = store.reader()?;
    reader.set_up(set_up)?;
    Ok(reader)
}

/// Interrupts running queries.
struct InterruptHandles {
    /// One for each thread that has a connection.
    all: Vec<Option<InterruptHandle>>,
    stopped: bool,
}

/// One of the threads.
struct ReaderThread {
    number: usize,
    /// `None` before the first query, and after a query panicked.
    reader: Option<Reader>,
    open_reader: Arc<OpenReader>,
    interrupt_handles: Arc<Mutex<InterruptHandles>>,
    scheduler: Arc<dyn StepScheduler>,
    drain: Arc<ReaderDrain>,
}

impl ReaderThread {
    fn run(mut self, queue: &Queue<ReaderJob>) {
        loop {
            self.scheduler.wait(EngineThread::Reader(self.number));
            let Some((job, _turn)) = queue.take_one(self.number) else { return };
            self.scheduler.at_fault_point(FaultPoint::Read);
            self.serve(job);
        }
    }

    /// Opens the connection.
    fn open(&self) -> Result<Reader, StoreError> {
        let reader = (self.open_reader)()?;
        let mut interrupt_handles =
            self.interrupt_handles.lock().unwrap_or_else(PoisonError::into_inner);
        let interrupt_handle = reader.interrupt_handle();
        if interrupt_handles.stopped {
            interrupt_handle.stop();
        }
        interrupt_handles.all[self.number] = Some(interrupt_handle);
        drop(interrupt_handles);
        Ok(reader)
    }

    /// Runs one job. If that fails, its reply is dropped, and its caller gets `internal`.
    fn serve(&mut self, job: ReaderJob) {
        let mut reader = match self.reader.take().map_or_else(|| self.open(), Ok) {
            Ok(reader) => reader,
            Err(error) => {
                return tracing::error!(
                    name: "reader_not_opened",
                    %error,
                    "a reader cannot open the file"
                );
            }
        };
        let admitted = self.drain.admit(reader.interrupt_handle());
        let scheduler = &self.scheduler;
        let served = catch_unwind(AssertUnwindSafe(|| {
            scheduler.at_fault_point(FaultPoint::Query);
            job(&mut reader);
        }));
        drop(admitted);
        match served {
            Ok(()) => self.reader = Some(reader),
            Err(panic) => {
                let why = panic_text(panic.as_ref());
                tracing::error!(
                    name: "query_panicked",
                    %why,
                    "a query panicked; its reader opens the file again"
                );
            }
        }
    }
}

/// Returns the refusal of a query that needs rows which SQLite cannot commit: the hint for a call speaks of writing.
fn hint_for_query(refusal: Refusal) -> Refusal {
    if refusal.code != Code::DiskFull {
        return refusal;
    }
    let hint = "free some space: the last answered calls are only in the journal, where queries \
                cannot read them";
    refusal.hint(hint)
}

fn overloaded() -> Refusal {
    Refusal::new(Code::Overloaded, "too many queries wait for a reader")
        .hint("try again in a moment")
}

fn given_up() -> Refusal {
    Refusal::new(Code::Internal, "the query failed with an internal error").hint(SEE_LOG)
}
