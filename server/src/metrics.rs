//! `GET /metrics`, in the text format of Prometheus.
//!
//! The engine, the modules, the agent host and this server each name their metrics; `abide_schema::metrics` has the format.
//! What costs more than reading counters is read at most every five seconds, by one scrape for all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abide_engine::{Engine, template_families, waiting_families};
use abide_schema::caller::Caller;
use abide_schema::metrics::{Metric, MetricFamily, MetricSample, metrics_text};
use abide_schema::{Code, Refusal};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::app_state::{AppState, CallerExtension};
use crate::problem::Problem;

/// How long rows are not counted again: a scrape that comes sooner costs nobody a turn of the writer or of a reader.
const FRESH: Duration = Duration::from_secs(5);

/// What was read from rows and from the writer last, for all scrapes.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricsCache(Arc<Mutex<Option<CachedFamilies>>>);

/// Metrics, and when they were read.
#[derive(Debug)]
struct CachedFamilies {
    at: Instant,
    families: Vec<MetricFamily>,
}

impl MetricsCache {
    /// Returns the metrics that have to be read, after at most one other request reads them.
    async fn read(&self, engine: &Engine) -> Vec<MetricFamily> {
        let mut cached = self.0.lock().await;
        if let Some(read) = &*cached
            && read.at.elapsed() < FRESH
        {
            return read.families.clone();
        }
        // They are unavailable while the engine closes or is poisoned, or while its queues are full. The other numbers are
        // still true.
        let templates = engine.live_templates().await.unwrap_or_default();
        let mut families = template_families(&templates);
        families.extend(engine.module_families().await.unwrap_or_default());
        families.extend(waiting_families(&engine.waiting_rows().await.unwrap_or_default()));
        *cached = Some(CachedFamilies { at: Instant::now(), families: families.clone() });
        families
    }
}

/// Returns the current metrics.
pub(crate) async fn metrics(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    check_unscoped(&app, &by, "/metrics")?;
    let mut families = server_families(&app);
    families.extend(app.engine.metrics().families());
    families.extend(app.metrics_cache.read(&app.engine).await);
    families.extend(app.agents.iter().flat_map(|agents| agents.metrics()));
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], metrics_text(&families)).into_response())
}

/// The metrics of the server itself.
fn server_families(app: &AppState) -> Vec<MetricFamily> {
    let engine = &app.engine;
    let lifecycle = &app.lifecycle;
    let seq = engine.durable_seq().0.unsigned_abs();
    let floor = engine.metrics().change_log_oldest_seq.get();
    let free_bytes = engine.disk_free_bytes();
    let not_after = app.tls.iter().map(|tls| tls.not_after().0.div_euclid(1_000_000) as f64);
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    vec![
        Metric::gauge("build_info", "The running version.")
            .with(vec![MetricSample::new(version, 1.0)]),
        Metric::gauge("ready", "1 until the engine fails; also 1 while the disk is full.")
            .with_value(u64::from(engine.ready().is_ok())),
        Metric::gauge("disk_free_bytes", "Bytes that the database can still take on its disk.")
            .with(
                free_bytes
                    .map(|bytes| MetricSample::new(Vec::new(), bytes as f64))
                    .into_iter()
                    .collect(),
            ),
        Metric::gauge(
            "tls_certificate_not_after_seconds",
            "When the certificate in use expires, in Unix time; no sample without TLS.",
        )
        .with(not_after.map(|at| MetricSample::new(Vec::new(), at)).collect()),
        Metric::gauge("seq", "The last durable event.").with_value(seq),
        Metric::gauge(
            "change_log_events",
            "Events in the change log, from which clients can resume.",
        )
        .with_value(seq.saturating_sub(floor)),
        Metric::gauge("writer_queue_bytes", "Bytes of calls queued for the writer.")
            .with_value(engine.backlog() as u64),
        Metric::gauge(
            "buffered_bytes",
            "Bytes buffered in memory for clients: request bodies and results.",
        )
        .with_value(engine.buffers().total() as u64),
        Metric::gauge("connections", "Open connections of any kind.")
            .with_value(lifecycle.connections() as u64),
        Metric::gauge("websockets", "Open WebSockets.").with_value(lifecycle.websockets() as u64),
        Metric::counter(
            "refused_credentials_total",
            "Requests whose credentials were missing or not valid.",
        )
        .with_value(app.refused_credentials.count()),
        Metric::counter(
            "dropped_log_records_total",
            "Log records that were dropped, because stderr was not read or could not be written.",
        )
        .with_value(app.dropped_log_records.load(Ordering::Relaxed)),
    ]
}

/// Refuses data of all scopes to a caller with a scope.
pub(crate) fn check_unscoped(app: &AppState, by: &Caller, what: &str) -> Result<(), Refusal> {
    if by.scope().is_empty() {
        return Ok(());
    }
    let detail = format!("{what} covers all scopes, and you have a scope");
    app.engine.note_denied(by, what, &detail);
    Err(Refusal::new(Code::Denied, detail).hint("use an identity without a scope"))
}
