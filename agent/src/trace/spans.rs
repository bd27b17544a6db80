//! The trace of a run: one span for the run, for each request to a model and for each tool call. A delegated run is a
//! span below the call that started it. Everything is derived from rows, also the ids, so a run that several runtimes
//! have driven has one trace, and sending it again sends the same spans.

use abide_client::rows::{AgentState, Run, ToolCall, ToolCallStatus};
use abide_client::{Abide, Error, Json};
use serde_json::{Map, Value, json};

use crate::trace::names;

/// One span.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) trace_id: String,
    pub(crate) span_id: String,
    pub(crate) parent_id: Option<String>,
    pub(crate) name: String,
    /// Whether it is a request to another system: a model.
    pub(crate) is_client: bool,
    /// Microseconds since 1970.
    pub(crate) from: i64,
    pub(crate) until: i64,
    pub(crate) attributes: Map<String, Value>,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

/// Returns the spans of a run that has ended; none if there is no such run.
pub(crate) async fn spans(abide: &Abide, run_id: &str, log_data: bool) -> Result<Vec<Span>, Error> {
    let sql = "SELECT * FROM runs WHERE id = :id AND ended_at IS NOT NULL";
    let found: Vec<Run> = abide.sql(sql).param("id", run_id).fetch().await?;
    let Some(run) = found.into_iter().next() else { return Ok(Vec::new()) };
    let sql = "SELECT root_id, call_id FROM delegations WHERE run_id = :id";
    let above: Vec<(String, Option<String>)> = abide.sql(sql).param("id", run_id).fetch().await?;
    let (root_id, call_id) = above.into_iter().next().unwrap_or((run.id.clone(), None));
    let sql = "SELECT created_at FROM runs WHERE id = :id";
    let began: Vec<(i64,)> = abide.sql(sql).param("id", &root_id).fetch().await?;
    let began = began.first().map_or(run.created_at.0, |(at,)| *at);
    // Two files can have runs with the same id.
    let trace_id =
        format!("{:016x}{:016x}", hash(1, &[&root_id, &began.to_string()]), hash(2, &[&root_id]));
    let trace = Trace { trace_id, log_data };
    let mut spans = vec![trace.run(abide, &run, call_id).await?];
    spans.extend(trace.model_calls(abide, &run).await?);
    spans.extend(trace.tool_calls(abide, &run).await?);
    Ok(spans)
}

struct Trace {
    trace_id: String,
    log_data: bool,
}

impl Trace {
    fn span(&self, kind: &str, id: &str, parent: Option<(&str, &str)>) -> Span {
        Span {
            trace_id: self.trace_id.clone(),
            span_id: self.span_id(kind, id),
            parent_id: parent.map(|(kind, id)| self.span_id(kind, id)),
            name: String::new(),
            is_client: false,
            from: 0,
            until: 0,
            attributes: Map::new(),
            error: None,
        }
    }

    fn span_id(&self, kind: &str, id: &str) -> String {
        format!("{:016x}", hash(3, &[&self.trace_id, kind, id]))
    }

    async fn run(&self, abide: &Abide, run: &Run, call: Option<String>) -> Result<Span, Error> {
        let parent = call.as_deref().map(|call| (names::EXECUTE_TOOL, call));
        let mut attributes = attributes([
            (names::OPERATION, json!(names::INVOKE_AGENT)),
            (names::AGENT_NAME, json!(run.agent)),
            (names::AGENT_VERSION, json!(run.revision.to_string())),
            (names::CONVERSATION, json!(run.session_id)),
            (names::RUN, json!(run.id)),
            (names::STATUS, json!(run.status)),
            (names::INPUT_TOKENS, json!(run.input_tokens)),
            (names::OUTPUT_TOKENS, json!(run.output_tokens)),
        ]);
        if self.log_data {
            let sql = "SELECT * FROM agent_state WHERE session_id = :sid AND role = 'user' \
                       AND created_at <= :at ORDER BY id DESC LIMIT 1";
            let asked = abide.sql(sql).param("sid", &run.session_id).param("at", run.created_at.0);
            let asked: Vec<AgentState> = asked.fetch().await?;
            let input = asked.first().and_then(|it| it.content.clone()).unwrap_or_default();
            attributes.insert(names::INPUT_MESSAGES.to_owned(), messages("user", &input));
            let output = run.output.as_ref().map(Json::value).unwrap_or_default();
            let output = output["content"].as_str().unwrap_or_default();
            attributes.insert(names::OUTPUT_MESSAGES.to_owned(), messages("assistant", output));
        }
        Ok(Span {
            name: format!("{} {}", names::INVOKE_AGENT, run.agent),
            from: run.created_at.0,
            until: run.ended_at.map_or(run.updated_at.0, |at| at.0),
            attributes,
            error: run.error_code.clone(),
            ..self.span(names::INVOKE_AGENT, &run.id, parent)
        })
    }

    /// One span for each request that a model has answered. It begins with the event before the answer.
    async fn model_calls(&self, abide: &Abide, run: &Run) -> Result<Vec<Span>, Error> {
        let sql = "SELECT number, kind, data, created_at FROM run_events WHERE run_id = :id \
                   AND kind NOT IN ('token', 'reasoning', 'line') ORDER BY number";
        let events: Vec<(i64, String, Json, i64)> =
            abide.sql(sql).param("id", &run.id).fetch().await?;
        let mut spans = Vec::new();
        let mut since = run.created_at.0;
        for (number, kind, data, at) in events {
            if kind == "usage" {
                let data = data.value();
                let operation = match data["operation"].as_str() {
                    Some(names::EMBEDDINGS) => names::EMBEDDINGS,
                    _ => names::CHAT,
                };
                let model = data["model"].as_str().unwrap_or_default();
                let parent = Some((names::INVOKE_AGENT, &*run.id));
                let mut attributes = attributes([
                    (names::OPERATION, json!(operation)),
                    (names::PROVIDER, data["provider"].clone()),
                    (names::RESPONSE_MODEL, data["model"].clone()),
                    (names::CONVERSATION, json!(run.session_id)),
                    (names::INPUT_TOKENS, data["input_tokens"].clone()),
                    (names::OUTPUT_TOKENS, data["output_tokens"].clone()),
                ]);
                attributes.retain(|_, value| !value.is_null());
                spans.push(Span {
                    name: format!("{operation} {model}"),
                    is_client: true,
                    from: since.min(at),
                    until: at,
                    attributes,
                    ..self.span(operation, &format!("{}#{number}", run.id), parent)
                });
            }
            since = at;
        }
        Ok(spans)
    }

    /// One span for each call of the run that a worker has claimed.
    async fn tool_calls(&self, abide: &Abide, run: &Run) -> Result<Vec<Span>, Error> {
        let sql = "SELECT * FROM tool_calls WHERE session_id = :sid AND attempt > 0 \
                   ORDER BY created_seq, call_id";
        let calls: Vec<ToolCall> = abide.sql(sql).param("sid", &run.session_id).fetch().await?;
        Ok(calls
            .iter()
            .filter(|call| {
                let rest = call.call_id.strip_prefix(run.id.as_str());
                rest.is_some_and(|rest| rest.starts_with(abide_client::rules::DERIVED))
            })
            .map(|call| self.tool_call(run, call))
            .collect())
    }

    fn tool_call(&self, run: &Run, call: &ToolCall) -> Span {
        let mut attributes = attributes([
            (names::OPERATION, json!(names::EXECUTE_TOOL)),
            (names::TOOL_NAME, json!(call.tool_name)),
            (names::TOOL_CALL_ID, json!(call.call_id)),
            (names::CONVERSATION, json!(run.session_id)),
            (names::STATUS, json!(call.status)),
            (names::ATTEMPT, json!(call.attempt)),
        ]);
        if self.log_data {
            attributes.insert(names::TOOL_ARGUMENTS.to_owned(), json!(call.arguments.as_str()));
            if let Some(result) = &call.result {
                attributes.insert(names::TOOL_RESULT.to_owned(), json!(result.as_str()));
            }
        }
        let failed = call.status != ToolCallStatus::Succeeded;
        Span {
            name: format!("{} {}", names::EXECUTE_TOOL, call.tool_name),
            from: call.claimed_at.map_or(call.created_at.0, |at| at.0),
            until: call.updated_at.0,
            attributes,
            error: failed.then(|| call.status.as_str().to_owned()),
            ..self.span(names::EXECUTE_TOOL, &call.call_id, Some((names::INVOKE_AGENT, &run.id)))
        }
    }
}

fn attributes<const N: usize>(all: [(&str, Value); N]) -> Map<String, Value> {
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns a message in the form of the conventions, as text.
fn messages(role: &str, text: &str) -> Value {
    let parts = json!([{"role": role, "parts": [{"type": "text", "content": text}]}]);
    json!(parts.to_string())
}

/// FNV-1a, 64 bits. The ids of spans need to be equal after a restart and different from each other, nothing more.
fn hash(seed: u8, texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    std::iter::once(seed).chain(bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
