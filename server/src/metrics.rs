//! `GET /metrics`, in the text format of Prometheus (0.0.4).
//!
//! The format is written here, in 20 lines: a client library owns its counters in a registry, but these are counters of
//! the engine, which knows nothing of HTTP, and of templates, which come and go.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};

use abide_engine::template_series;
use abide_schema::caller::Caller;
use abide_schema::{Code, Refusal};

use crate::agents::{AgentMetricFamily, AgentMetricSample};
use crate::app_state::{AppState, CallerExtension};
use crate::problem::Problem;

/// Returns the current metrics.
pub(crate) async fn metrics(
    State(app): State<AppState>,
    by: CallerExtension,
) -> Result<Response, Problem> {
    check_unscoped(&app, &by, "/metrics")?;
    let engine = &app.engine;
    let lifecycle = &app.lifecycle;
    let seq = engine.durable_seq().0.unsigned_abs();
    let floor = engine.metrics().change_log_oldest_seq.get();
    let gauges = [
        ("seq", "The last durable event.", seq),
        (
            "change_log_events",
            "Events in the change log, from which clients can resume.",
            seq.saturating_sub(floor),
        ),
        ("writer_queue_bytes", "Bytes of calls queued for the writer.", engine.backlog() as u64),
        (
            "buffered_bytes",
            "Bytes buffered in memory for clients: request bodies and results.",
            engine.buffers().total() as u64,
        ),
        ("connections", "Open connections of any kind.", lifecycle.connections() as u64),
        ("websockets", "Open WebSockets.", lifecycle.websockets() as u64),
        ("ready", "1 while calls are accepted.", u64::from(engine.ready().is_ok())),
    ];
    let mut text = MetricsText::default();
    for (name, meaning, value) in gauges.into_iter().chain(engine.metrics().read()) {
        text.write_head(name, meaning).write_sample(name, None, value);
    }
    // Unavailable while the engine closes or is poisoned.
    let templates = engine.live_templates().await.unwrap_or_default();
    let templates = template_series(&templates);
    // The same: the other numbers are still true.
    let of_modules = engine.module_series().await.unwrap_or_default();
    let labelled = engine.metrics().read_labelled().into_iter();
    for series in labelled.chain(templates).chain(of_modules) {
        text.write_head(series.name, series.meaning);
        for (label, value) in &series.values {
            text.write_sample(series.name, Some((series.label, label)), *value);
        }
    }
    for family in app.agents.iter().flat_map(|agents| agents.metrics()) {
        text.write_family(&family);
    }
    let version = Some(("version", env!("CARGO_PKG_VERSION")));
    text.write_head("build_info", "The running version.").write_sample("build_info", version, 1);
    let answer = ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.0);
    Ok(answer.into_response())
}

/// Refuses data of all scopes to a caller with a scope.
fn check_unscoped(app: &AppState, by: &Caller, what: &str) -> Result<(), Refusal> {
    if by.scope().is_empty() {
        return Ok(());
    }
    let detail = format!("{what} covers all scopes, and you have a scope");
    app.engine.note_denied(by, what, &detail);
    Err(Refusal::new(Code::Denied, detail).hint("use an identity without a scope"))
}

/// The text under construction.
#[derive(Default)]
struct MetricsText(String);

impl MetricsText {
    fn write_head(&mut self, name: &str, meaning: &str) -> &mut MetricsText {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        self.write_head_of_kind(name, meaning, kind)
    }

    fn write_head_of_kind(&mut self, name: &str, meaning: &str, kind: &str) -> &mut MetricsText {
        // Writing into a String cannot fail.
        let _ = write!(self.0, "# HELP abide_{name} {meaning}\n# TYPE abide_{name} {kind}\n");
        self
    }

    /// Samples of an agent host.
    fn write_family(&mut self, family: &AgentMetricFamily) {
        let AgentMetricFamily { name, meaning, kind, samples } = family;
        self.write_head_of_kind(name, meaning, kind);
        for AgentMetricSample { suffix, labels, value } in samples {
            let labels =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape_label(value)));
            let labels = labels.collect::<Vec<_>>().join(",");
            let _ = writeln!(self.0, "abide_{name}{suffix}{{{labels}}} {value}");
        }
    }

    /// One value, with a label if it has one.
    fn write_sample(
        &mut self,
        name: &str,
        label: Option<(&str, &str)>,
        value: u64,
    ) -> &mut MetricsText {
        let label = label.map(|(name, value)| format!("{{{name}=\"{}\"}}", escape_label(value)));
        let _ = writeln!(self.0, "abide_{name}{} {value}", label.unwrap_or_default());
        self
    }
}

/// Escapes a label's value: one line, with quotes and backslashes escaped.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// Names of agents, models and tools cannot add lines or labels.
    #[test]
    fn samples_of_agents_have_all_their_labels_escaped() {
        let sample = |suffix, agent: &str, value| AgentMetricSample {
            suffix,
            labels: vec![("agent", agent.to_owned()), ("le", "+Inf".to_owned())],
            value,
        };
        let mut text = MetricsText::default();
        text.write_family(&AgentMetricFamily {
            name: "agent_tool_call_seconds",
            meaning: "Durations of calls of tools by agents.",
            kind: "histogram",
            samples: vec![sample("_bucket", "a\"} 1\nabide_seq 7", 3.0), sample("_sum", "b", 0.25)],
        });
        expect![[r##"
            # HELP abide_agent_tool_call_seconds Durations of calls of tools by agents.
            # TYPE abide_agent_tool_call_seconds histogram
            abide_agent_tool_call_seconds_bucket{agent="a\"} 1\nabide_seq 7",le="+Inf"} 3
            abide_agent_tool_call_seconds_sum{agent="b",le="+Inf"} 0.25
        "##]]
        .assert_eq(&text.0);
    }

    #[test]
    fn label_values_are_escaped() {
        let mut text = MetricsText::default();
        text.write_head("live_template_steps_total", "Steps of live queries, by template.");
        for template in [r#"SELECT "id" FROM t"#, "two\nlines", r"back\slash", "é{}=,"] {
            text.write_sample("live_template_steps_total", Some(("template", template)), 7);
        }
        expect![[r##"
            # HELP abide_live_template_steps_total Steps of live queries, by template.
            # TYPE abide_live_template_steps_total counter
            abide_live_template_steps_total{template="SELECT \"id\" FROM t"} 7
            abide_live_template_steps_total{template="two\nlines"} 7
            abide_live_template_steps_total{template="back\\slash"} 7
            abide_live_template_steps_total{template="é{}=,"} 7
        "##]]
        .assert_eq(&text.0);
    }
}
