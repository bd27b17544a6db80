//! Regression: after a panic of its driver, a run still counted as driven, so it hung until the next start of the
//! runtime. Now the run is retried, and fails after repeated panics.

use std::sync::atomic::{AtomicU32, Ordering};

use abide_models::{ModelProvider, ModelRequest, ModelStream, Script};

use crate::fixture::{FixtureOptions, RuntimeFixture, answering};

/// A model that panics the given number of times.
struct PanickingModel {
    times: u32,
    asked: AtomicU32,
    script: Script,
}

impl ModelProvider for PanickingModel {
    fn id(&self) -> &str {
        "breaks"
    }

    fn stream(&self, request: ModelRequest) -> ModelStream {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(asked >= self.times, "a deliberate panic");
        self.script.stream(request)
    }
}

async fn broken(times: u32) -> RuntimeFixture {
    let script =
        Script::from_text("answers: [{ text: All is well. }]").expect("the script is valid");
    let models = answering(PanickingModel { times, asked: AtomicU32::new(0), script });
    FixtureOptions { models, ..FixtureOptions::new("", "answers: []") }.open().await
}

#[tokio::test]
async fn a_run_is_retried_after_a_panic_of_its_driver() {
    let fixture = broken(1).await;
    let run = fixture.begin("Go on.").await;
    let (output, _) = fixture.output(&run.id, 0).await;
    assert!(output.contains(r#"done {"assistant_data":{"content":"All is well.""#), "{output}");
    fixture.close().await;
}

#[tokio::test]
async fn a_run_fails_after_repeated_panics() {
    let fixture = broken(u32::MAX).await;
    let run = fixture.begin("Go on.").await;
    let (_, last) = fixture.output(&run.id, 0).await;
    assert_eq!(last.data["code"], "runtime_crash");
    assert_eq!(
        last.data["message"],
        "the run's driver panicked 3 times; this is a bug in the runtime"
    );
    // The session accepts a new run.
    fixture.until("SELECT id FROM runs WHERE status = 'failed' AND driver IS NULL").await;
    fixture.close().await;
}
