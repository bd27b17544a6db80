//! A few threads that read: each has a connection, all take from one queue.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use abide_schema::{Code, Refusal, limits};
use abide_store::{Reader, Store, StoreError};
use tokio::sync::oneshot;

use crate::ports::{Stage, Turns};
use crate::queue::{Queue, Rejected};

/// What a reader is given to do.
pub(crate) type ReaderJob = Box<dyn FnOnce(&mut Reader) + Send>;

/// The pool. Its threads end when it is closed.
pub(crate) struct Readers {
    queue: Arc<Queue<ReaderJob>>,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("waiting", &self.queue.weight()).finish()
    }
}

impl Readers {
    /// Starts a thread for each connection.
    pub(crate) fn start(
        readers: Vec<Reader>,
        turns: &Arc<dyn Turns>,
    ) -> (Readers, Vec<JoinHandle<()>>) {
        let queue = Arc::new(Queue::new(limits::READER_QUEUE));
        let mut threads = Vec::with_capacity(limits::READERS);
        for (number, mut reader) in readers.into_iter().enumerate() {
            let (queue, turns) = (Arc::clone(&queue), Arc::clone(turns));
            let thread = thread::Builder::new().name(format!("abide-reader-{number}"));
            let thread = thread.spawn(move || {
                let wait_turn = || {
                    turns.wait(Stage::Reader(number));
                };
                serve(&queue, &mut reader, wait_turn);
            });
            threads.push(thread.expect("the system has room for a thread"));
        }
        (Readers { queue }, threads)
    }

    /// Runs something on a reader for a caller of that id. It weighs so many queries in
    /// the queue.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        by: &str,
        weight: usize,
        work: impl FnOnce(&mut Reader) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let job: ReaderJob = Box::new(move |reader| {
            // Nobody may be waiting any more; then the work was for nothing.
            let _ = reply.send(work(reader));
        });
        self.queue.push(Some(by), job, weight).map_err(|rejected| match rejected {
            Rejected::Full(_) => {
                Refusal::new(Code::Overloaded, "too many queries wait for a reader")
                    .hint("try again in a moment")
            }
            Rejected::Closed(_) => closing(),
        })?;
        answer.await.map_err(|_| Refusal::new(Code::Internal, "the query was given up"))
    }

    /// Where the threads take their work from.
    pub(crate) fn queue(&self) -> &Arc<Queue<ReaderJob>> {
        &self.queue
    }

    pub(crate) fn close(&self) {
        self.queue.close();
    }
}

/// Opens one connection that reads.
pub(crate) fn open_reader(store: &Store, set_up: &[String]) -> Result<Reader, StoreError> {
    let reader = store.reader()?;
    reader.set_up(set_up)?;
    Ok(reader)
}

fn serve(queue: &Queue<ReaderJob>, reader: &mut Reader, wait_turn: impl Fn()) {
    let mut jobs = Vec::with_capacity(1);
    loop {
        wait_turn();
        queue.take(1, &mut jobs);
        let Some(job) = jobs.pop() else { return };
        job(reader);
    }
}

/// What is said while the engine goes down.
pub(crate) fn closing() -> Refusal {
    Refusal::new(Code::Overloaded, "the engine is closing").hint("try again when it is back")
}
