//! The engine's threads, and the consequences of a panic in one of them.
//!
//! *Invariant:* every waiter gets a reply when a thread panics. The engine is poisoned, the queues of the commit
//! pipeline are abandoned, so that its other threads end and drop every reply in them; a waiter whose
//! reply is dropped gets `engine_failed`. A reader catches the panic of a query itself (`queries/readers.rs`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use abide_store::StoreError;

use crate::access::tenants::Tenants;
use crate::commit::durable::Commit;
use crate::commit::jobs::WriterJob;
use crate::commit::queue::Queue;
use crate::health::Health;
use crate::ports::{EngineThread, StepScheduler};
use crate::queries::reader_drain::ReaderDrain;
use crate::subscriptions::buffers::Buffers;
use crate::subscriptions::publisher::Publication;

/// The stack of a thread. Readers parse SQL and the writer policies, and a syntax tree is printed by recursion.
const STACK_BYTES: usize = 16 << 20;

/// State shared by all threads of one engine.
#[derive(Clone)]
pub(crate) struct Threads {
    pub(crate) health: Arc<Health>,
    pub(crate) jobs: Arc<Queue<WriterJob>>,
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Publication>>,
    pub(crate) scheduler: Arc<dyn StepScheduler>,
    pub(crate) buffers: Buffers,
    pub(crate) tenants: Tenants,
    pub(crate) drain: Arc<ReaderDrain>,
}

impl Threads {
    /// Returns a thread of the commit pipeline, to be started.
    pub(crate) fn thread(
        &self,
        stage: EngineThread,
        run: impl FnOnce() + Send + 'static,
    ) -> NewThread {
        self.named_thread(stage, name(stage), run, || {})
    }

    /// Returns a thread with a name, to be started; `abandon` is called if it panics.
    pub(crate) fn named_thread(
        &self,
        stage: EngineThread,
        name: String,
        run: impl FnOnce() + Send + 'static,
        abandon: impl FnOnce() + Send + 'static,
    ) -> NewThread {
        let threads = self.clone();
        let main = Box::new(move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                threads.fail(stage, panic.as_ref());
                abandon();
            }
            threads.scheduler.ended(stage);
        });
        NewThread { name, main }
    }

    fn fail(&self, stage: EngineThread, panic: &(dyn Any + Send)) {
        let why = panic_text(panic);
        tracing::error!(
            name: "thread_panicked",
            ?stage,
            %why,
            "a thread of the engine panicked; all requests are refused"
        );
        // First, so that the reason is available when waiters see a closed queue or a dropped reply.
        self.health.panicked();
        self.jobs.abandon();
        self.commits.abandon();
        self.to_publish.abandon();
    }
}

/// A thread that is not started yet.
pub(crate) struct NewThread {
    name: String,
    main: Box<dyn FnOnce() + Send>,
}

impl NewThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]: the system has no room for it.
    pub(crate) fn start(self) -> Result<JoinHandle<()>, StoreError> {
        let thread = Builder::new().name(self.name).stack_size(STACK_BYTES).spawn(self.main);
        thread.map_err(|why| StoreError::Unavailable(format!("no thread can be started: {why}")))
    }
}

fn name(stage: EngineThread) -> String {
    match stage {
        EngineThread::Writer => "abide-writer".to_owned(),
        EngineThread::Sync => "abide-sync".to_owned(),
        EngineThread::Publish => "abide-publish".to_owned(),
        EngineThread::Checkpoint => "abide-checkpoint".to_owned(),
        EngineThread::Reader(number) => format!("abide-reader-{number}"),
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
