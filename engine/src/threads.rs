//! The engine's threads, and what a panic in one of them does to the others.
//!
//! *Invariant:* every waiter is answered when a thread panics. The engine is poisoned, the queues of the commit
//! pipeline are abandoned, so that its other threads end and every reply in them is dropped; a waiter whose
//! reply is dropped gets `poisoned`. A reader catches a panic of a query itself (`readers.rs`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crate::durable::{Commit, Published};
use crate::health::Health;
use crate::ports::{Stage, Turns};
use crate::queue::Queue;
use crate::writer::Job;

/// The stack of a thread. Readers understand texts and the writer policies, and a tree is printed by recursion.
const STACK_BYTES: usize = 16 << 20;

/// What all threads of one engine share.
#[derive(Clone)]
pub(crate) struct Threads {
    pub(crate) health: Arc<Health>,
    pub(crate) jobs: Arc<Queue<Job>>,
    pub(crate) commits: Arc<Queue<Commit>>,
    pub(crate) to_publish: Arc<Queue<Published>>,
    pub(crate) turns: Arc<dyn Turns>,
}

impl Threads {
    /// Starts a thread of the commit pipeline.
    pub(crate) fn spawn(
        &self,
        stage: Stage,
        run: impl FnOnce() + Send + 'static,
    ) -> JoinHandle<()> {
        self.spawn_with(stage, name(stage), run, || {})
    }

    /// Starts a thread by a name; `abandon` is called where it panics.
    pub(crate) fn spawn_with(
        &self,
        stage: Stage,
        name: String,
        run: impl FnOnce() + Send + 'static,
        abandon: impl FnOnce() + Send + 'static,
    ) -> JoinHandle<()> {
        let threads = self.clone();
        let thread = Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                threads.fail(stage, panic.as_ref());
                abandon();
            }
            threads.turns.ended(stage);
        });
        thread.expect("the system has room for a thread")
    }

    fn fail(&self, stage: Stage, panic: &(dyn Any + Send)) {
        let why = panic_text(panic);
        tracing::error!(?stage, %why, "a thread of the engine panicked; nothing more is accepted");
        // First, so that who finds a queue closed or a reply dropped finds out why.
        self.health.panicked();
        self.jobs.abandon();
        self.commits.abandon();
        self.to_publish.abandon();
    }
}

fn name(stage: Stage) -> String {
    match stage {
        Stage::Writer => "abide-writer".to_owned(),
        Stage::Sync => "abide-sync".to_owned(),
        Stage::Publish => "abide-publish".to_owned(),
        Stage::Checkpoint => "abide-checkpoint".to_owned(),
        Stage::Reader(number) => format!("abide-reader-{number}"),
    }
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
