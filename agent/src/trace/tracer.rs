//! Sends the traces of runs that have ended. It is a task of its own with a bounded queue: a slow or failing sink delays
//! no run and fails none. Then the trace is `partial`, and its row in `run_traces` says why.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide_client::arguments::RecordTrace;
use abide_client::rows::TraceStatus;
use abide_client::{Abide, Error};
use abide_definitions::project_config::TraceConfig;
use abide_tools::Environment;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::trace;
use crate::trace::sink::ReadySink;

/// Runs that have ended and wait for their trace to be sent. More of them are traced when the next runtime starts.
const QUEUE: usize = 1_024;

/// A runtime that starts sends the traces of runs that have ended within this time and have none.
const LOOK_BACK: Duration = Duration::from_secs(86_400);

/// Maximum size of the reason in a row, in bytes.
const REASON: usize = 1_000;

/// The sender of traces.
pub struct Tracer {
    log_data: bool,
    sinks: Vec<ReadySink>,
}

impl Tracer {
    /// From its configuration; `None` if there are no sinks. Files are relative to the folder.
    ///
    /// # Errors
    /// Why a sink cannot be used, in one sentence.
    pub fn open(
        config: &TraceConfig,
        folder: &Path,
        environment: &Environment,
    ) -> Result<Option<Tracer>, String> {
        let sinks = config.sinks.iter().map(|sink| ReadySink::open(sink, folder, environment));
        let sinks: Vec<ReadySink> = sinks.collect::<Result<_, _>>()?;
        let log_data = config.log_data;
        Ok((!sinks.is_empty()).then_some(Tracer { log_data, sinks }))
    }

    /// Without sinks. `log_data`: whether spans have the texts of messages, the arguments of tools and their results.
    #[must_use]
    pub fn new(log_data: bool) -> Tracer {
        Tracer { log_data, sinks: Vec::new() }
    }

    /// Adds a sink in Rust. It gets the spans of one run that has ended, each as an object of the file sink. An error, or
    /// a panic, makes the trace `partial`.
    #[must_use]
    pub fn sink(
        mut self,
        sink: impl Fn(&[Value]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Tracer {
        self.sinks.push(ReadySink::Function(Arc::new(sink)));
        self
    }

    /// Starts the task. It ends when the queue is closed and empty.
    pub(crate) fn start(self: Arc<Self>, abide: Abide, now: i64) -> (TraceQueue, JoinHandle<()>) {
        let (queue, mut ended) = mpsc::channel::<String>(QUEUE);
        let task = tokio::spawn(async move {
            match untraced(&abide, now).await {
                Ok(runs) => {
                    for run in runs {
                        self.send(&abide, &run).await;
                    }
                }
                Err(error) => tracing::warn!(
                    name: "traces_not_found",
                    error = format_args!("{error:#}"),
                    "runs without a trace could not be found"
                ),
            }
            while let Some(run) = ended.recv().await {
                self.send(&abide, &run).await;
            }
        });
        (TraceQueue(queue), task)
    }

    async fn send(&self, abide: &Abide, run_id: &str) {
        if let Err(error) = self.send_all(abide, run_id).await {
            tracing::warn!(
                name: "trace_not_recorded",
                run_id,
                error = format_args!("{error:#}"),
                "the trace of a run could not be recorded"
            );
        }
    }

    async fn send_all(&self, abide: &Abide, run_id: &str) -> Result<(), Error> {
        // A run is queued each time its driver stops, also when it waits. If this task is late, the run has ended meanwhile, and
        // is queued again.
        let sql = "SELECT run_id FROM run_traces WHERE run_id = :id";
        let sent: Vec<(String,)> = abide.sql(sql).param("id", run_id).fetch().await?;
        if !sent.is_empty() {
            return Ok(());
        }
        let spans = trace::spans::spans(abide, run_id, self.log_data).await?;
        let Some(first) = spans.first() else { return Ok(()) };
        let mut failed = Vec::new();
        for sink in &self.sinks {
            if let Err(why) = sink.send(&spans).await {
                tracing::warn!(
                    name: "trace_not_sent",
                    run_id,
                    why,
                    "a sink has not accepted the trace of a run"
                );
                failed.push(why);
            }
        }
        let status = if failed.is_empty() { TraceStatus::Complete } else { TraceStatus::Partial };
        let error = failed.join("; ");
        let error = error[..error.floor_char_boundary(REASON)].to_owned();
        let count = i64::try_from(spans.len()).unwrap_or(i64::MAX);
        let record = RecordTrace {
            error: Some(error).filter(|error| !error.is_empty()),
            ..RecordTrace::new(run_id, &first.trace_id, count, status)
        };
        abide.call(record).await.map(drop)
    }
}

/// Returns the runs that have ended lately without a trace: their runtime has ended, or the queue was full.
async fn untraced(abide: &Abide, now: i64) -> Result<Vec<String>, Error> {
    let since = now.saturating_sub(i64::try_from(LOOK_BACK.as_micros()).unwrap_or(i64::MAX));
    let sql = "SELECT id FROM runs WHERE ended_at > :since \
               AND id NOT IN (SELECT run_id FROM run_traces) ORDER BY ended_at LIMIT 1000";
    let found: Vec<(String,)> = abide.sql(sql).param("since", since).fetch().await?;
    Ok(found.into_iter().map(|(id,)| id).collect())
}

/// The runs that have ended.
#[derive(Clone, Debug)]
pub(crate) struct TraceQueue(mpsc::Sender<String>);

impl TraceQueue {
    /// Adds a run. It does not wait.
    pub(crate) fn add(&self, run_id: &str) {
        if self.0.try_send(run_id.to_owned()).is_err() {
            tracing::warn!(
                name: "trace_delayed",
                run_id,
                "too many traces wait: this one is sent after the next start"
            );
        }
    }
}

#[cfg(test)]
mod tests;
