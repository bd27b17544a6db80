//! The latency from a token of the model to a subscriber. Each token is on disk before it is published.

use std::sync::Arc;
use std::time::Duration;

use abide_agent::RunEvents;
use abide_client::Abide;
use abide_client::rows::RunEventKind;
use abide_server::AccessConfig;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::Options;
use super::fixture::AgentFixture;
use super::model::{Notes, Pace};
use crate::live::report::{format_figure, format_table};
use crate::statistics::{median, percentile};

/// The subscriber's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Embedded,
    WebSocket,
}

pub(super) fn measure(options: &Options) -> String {
    let pieces = if options.quick { 10 } else { 200 };
    let mut rows = Vec::new();
    let mut worst = 0.0_f64;
    for (way, name) in
        [(Transport::Embedded, "in the process"), (Transport::WebSocket, "WebSocket")]
    {
        for runs in [1, 100] {
            let runtime = Runtime::new().expect("a tokio runtime");
            let found = runtime.block_on(measure_tokens(options, way, runs, pieces));
            let p50 = median(found.late_ms.iter().copied());
            worst = worst.max(p50);
            rows.push(vec![
                name.to_owned(),
                runs.to_string(),
                format_figure(found.tokens_a_second, 0),
                format_figure(p50, 2),
                format_figure(percentile(found.late_ms, 0.99), 2),
                format_figure(found.tokens_a_commit, 1),
            ]);
        }
    }
    let header = ["subscriber", "concurrent runs", "tokens/s", "p50 ms", "p99 ms", "tokens/commit"];
    let met = if worst < 5.0 { "met" } else { "missed" };
    format!(
        "**From a token of the model to a subscriber**, with each token on disk before it is sent; each run \
         produces 20 tokens per second and has a subscriber (goal: p50 under 5 ms, in every row: {met}).\n\n{}",
        format_table(&header, rows)
    )
}

struct Measured {
    late_ms: Vec<f64>,
    tokens_a_second: f64,
    tokens_a_commit: f64,
}

async fn measure_tokens(options: &Options, way: Transport, runs: usize, pieces: usize) -> Measured {
    let between = Duration::from_millis(50);
    // The delay gives all clients time to subscribe before the first token.
    let pace = Pace { answers: 1, first: Duration::from_secs(1), pieces, between };
    let mut fixture = AgentFixture::new(&options.dir, pace).await;
    let (end, ended) = oneshot::channel::<()>();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    let served =
        abide_server::serve(fixture.engine.clone(), listener, AccessConfig::loopback(), async {
            let _ = ended.await;
        });
    let served = tokio::spawn(served);
    let remote = Abide::connect(&url).await.expect("the server is running");
    fixture.start_runs(0, runs).await;
    let mut listeners = JoinSet::new();
    for run in 0..runs {
        let abide = if way == Transport::Embedded { fixture.abide.clone() } else { remote.clone() };
        let notes = Arc::clone(&fixture.notes);
        listeners.spawn(async move { listen(&abide, &format!("r{run}"), &notes).await });
    }
    let began = std::time::Instant::now();
    let commits = fixture.commit_count();
    fixture.start_driver();
    let late_ms: Vec<f64> = listeners.join_all().await.into_iter().flatten().collect();
    let seconds = began.elapsed().as_secs_f64() - pace.first.as_secs_f64();
    let commits = fixture.commit_count() - commits;
    assert_eq!(late_ms.len(), runs * pieces, "each token is received once");
    remote.close().await;
    let _ = end.send(());
    served.await.expect("no panic").expect("no error");
    fixture.close().await;
    let output = late_ms.len() as f64;
    Measured { late_ms, tokens_a_second: output / seconds, tokens_a_commit: output / commits }
}

/// The latency of each token of a run, in milliseconds.
async fn listen(abide: &Abide, run: &str, notes: &Notes) -> Vec<f64> {
    let mut events = RunEvents::subscribe(abide, run, 0).await.expect("the subscription starts");
    let mut late = Vec::new();
    while let Some(event) = events.next().await.expect("the stream continues") {
        let now = notes.now_us();
        if event.kind != RunEventKind::Token {
            continue;
        }
        let words = event.data["content"].as_str().unwrap_or_default().split_whitespace();
        let sent = words.filter_map(|word| word.parse::<u128>().ok());
        late.extend(sent.map(|sent| now.saturating_sub(sent) as f64 / 1e3));
    }
    late
}
