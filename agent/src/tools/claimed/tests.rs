//! Regression: a heartbeat was awaited where the tool ran. While it was not answered, for up to a minute, the tool, its
//! time limit and its cancellation stood still.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use abide_client::arguments::{
    CancelToolCall, ClaimToolCall, CreateSession, FailToolCall, RegisterAgent, RegisterTool,
    RequestToolCall,
};
use abide_client::rows::ToolCall;
use abide_client::{Abide, Config};
use abide_engine::Engine;
use abide_tests::disk::HookedDisk;
use abide_tools::ToolOutcome;
use serde_json::{Map, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::ClaimedCall;
use crate::run::heartbeat::{HeldLeases, LeaseKeeper};
use crate::run::settings::Settings;

/// Whether the disk answers, and how many syncs wait for it.
#[derive(Default)]
struct Held(Mutex<(bool, usize)>, Condvar);

impl Held {
    fn change(&self, change: impl FnOnce(&mut (bool, usize))) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.1.notify_all();
    }

    /// Waits as long as the condition holds, and a minute at most. Returns whether it holds still.
    fn wait_while(&self, mut holds: impl FnMut(&(bool, usize)) -> bool) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_secs(60);
        let waited = self.1.wait_timeout_while(state, limit, |state| holds(state));
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// A claimed call in a file whose disk can be held.
struct Fixture {
    _folder: TempDir,
    abide: Abide,
    held: Arc<Held>,
    call: ToolCall,
    settings: Settings,
}

impl Fixture {
    async fn open() -> Fixture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let held = Arc::new(Held::default());
        let disk = Arc::clone(&held);
        let mut config: abide_engine::Config = Config::default().into();
        config.tuning.disk = Arc::new(HookedDisk::new(move || {
            disk.change(|(is_held, waiting)| *waiting += usize::from(*is_held));
            disk.wait_while(|(is_held, _)| *is_held);
            Ok(())
        }));
        let file = folder.path().join("abide.db");
        let abide = Abide::embed(Engine::open(file, config).expect("the file opens"));
        abide.call(RegisterAgent::new("clerk", Map::new())).await.expect("it is valid");
        abide.call(RegisterTool::new("look")).await.expect("it is valid");
        abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
        let request = RequestToolCall::new("c1", "s1", "look", json!({}));
        abide.call(request).await.expect("it is requested");
        let claim = ClaimToolCall::new("c1").lease_ms(60_000);
        let call = abide.call(claim).await.expect("it is claimed").into_inner();
        let settings = Settings { lease: Duration::from_secs(9), ..Settings::named("me") };
        Fixture { _folder: folder, abide, held, call, settings }
    }

    /// Runs a tool while a heartbeat waits for a disk that does not answer. Returns the outcome and the virtual time that it
    /// took, in seconds.
    async fn keep(
        self,
        tool: impl Future<Output = ToolOutcome>,
        cancel: &CancellationToken,
    ) -> (ToolOutcome, u64) {
        let abide = &self.abide;
        let settings = &self.settings;
        let call = &self.call;
        let leases = &Arc::<HeldLeases>::default();
        self.held.change(|state| *state = (true, 0));
        tokio::time::pause();
        let begun = Instant::now();
        let mut keeper = None;
        let runs = async {
            // The first heartbeat is sent at once.
            let started = LeaseKeeper::start(abide, leases, settings.lease);
            keeper = Some(started.expect("a thread starts"));
            let is_unsent = self.held.wait_while(|(_, waiting)| *waiting == 0);
            assert!(!is_unsent, "a heartbeat waits for the disk");
            // tidy: the time is virtual
            sleep(Duration::from_secs(4)).await;
            tool.await
        };
        let claimed = ClaimedCall { abide, settings, leases, call, exchange: None };
        let outcome = claimed.keep(runs, cancel).await.unwrap_or_else(|lost| lost);
        let took = begun.elapsed().as_secs();
        tokio::time::resume();
        // The thread ends although its heartbeat has no answer.
        keeper.expect("it was started").stop().await;
        self.held.change(|(is_held, _)| *is_held = false);
        self.abide.close().await;
        (outcome, took)
    }
}

#[tokio::test]
async fn a_heartbeat_without_an_answer_does_not_delay_the_outcome() {
    let tool = async { ToolOutcome::text("done") };
    let (outcome, took) = Fixture::open().await.keep(tool, &CancellationToken::new()).await;
    assert_eq!((outcome.text.as_str(), took), ("done", 4));
}

#[tokio::test]
async fn a_heartbeat_without_an_answer_does_not_delay_a_cancellation() {
    let cancel = CancellationToken::new();
    let stops = async {
        cancel.cancel();
        ToolOutcome::text("stopped")
    };
    let (outcome, took) = Fixture::open().await.keep(stops, &cancel).await;
    assert_eq!((outcome.text.as_str(), took), ("stopped", 4));
}

#[tokio::test]
async fn a_tool_that_does_not_stop_is_given_up_during_a_heartbeat_without_an_answer() {
    let cancel = CancellationToken::new();
    let ignores = async {
        cancel.cancel();
        std::future::pending().await
    };
    let fixture = Fixture::open().await;
    let grace = fixture.settings.grace.as_secs();
    let (outcome, took) = fixture.keep(ignores, &cancel).await;
    assert_eq!(outcome.text, "look did not stop when it was asked to");
    assert_eq!(took, 4 + grace);
}

/// A cancellation and a lost lease reach the tool with the next heartbeat.
#[tokio::test]
async fn a_call_that_is_no_longer_wanted_is_asked_to_stop() {
    for is_cancelled in [true, false] {
        let Fixture { _folder, abide, call, settings, .. } = Fixture::open().await;
        if is_cancelled {
            abide.call(CancelToolCall::new("c1")).await.expect("it is asked for");
        } else {
            let token = call.fencing_token.expect("it is claimed");
            let failed = FailToolCall::new("c1", token, "it ended elsewhere");
            abide.call(failed).await.expect("it ends");
        }
        let leases = Arc::<HeldLeases>::default();
        let keeper = LeaseKeeper::start(&abide, &leases, Duration::from_millis(30))
            .expect("a thread starts");
        let cancel = CancellationToken::new();
        let stops = async {
            cancel.cancelled().await;
            ToolOutcome::text("stopped")
        };
        let abide = &abide;
        let leases = &leases;
        let settings = &settings;
        let claimed = ClaimedCall { abide, settings, leases, call: &call, exchange: None };
        let stopped = claimed.keep(stops, &cancel).await.expect("it stops in time");
        assert_eq!(stopped.text, "stopped");
        keeper.stop().await;
        abide.close().await;
    }
}
