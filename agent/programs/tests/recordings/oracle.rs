//! An independent parser for recorded lines. It shares no code with the parsers, and searches all lines at once
//! instead of reading them in order.

use std::collections::BTreeMap;

use abide_programs::{Program, ProgramEvent};
use serde_json::{Value, json};

/// The content of a file, in terms that all programs share.
#[derive(Debug, Default, PartialEq)]
struct Recorded {
    text: String,
    thoughts: String,
    /// Id, name and arguments.
    calls: Vec<Value>,
    /// Id, output, whether it failed, exit code.
    results: Vec<Value>,
    sessions: Vec<String>,
    /// Whether the run succeeded, the answer's text, and the cost.
    end: Option<(bool, String, Option<f64>)>,
    /// The total usage of the run: input, output, cached.
    used: Option<[Option<u64>; 3]>,
}

/// Compares the events with the lines.
pub(crate) fn check(file: &str, program: Program, lines: &[String], events: &[ProgramEvent]) {
    let lines: Vec<Value> = lines
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(Value::is_object)
        .collect();
    let expected = match program {
        Program::Claude => claude(&lines),
        Program::Codex => codex(&lines),
        Program::Gemini => gemini(&lines),
        Program::OpenCode => opencode(&lines),
        Program::Generic | Program::Acp | Program::CodexAppServer => {
            let statuses: Vec<&Value> = events
                .iter()
                .map(|event| match event {
                    ProgramEvent::Status { data } => data,
                    other => panic!("{file}: {other:?} is more than a status"),
                })
                .collect();
            assert_eq!(statuses, lines.iter().collect::<Vec<_>>(), "{file}");
            return;
        }
    };
    assert_eq!(from_events(events), expected, "{file}");
}

/// The content of the events.
fn from_events(events: &[ProgramEvent]) -> Recorded {
    let mut recorded = Recorded::default();
    for event in events {
        match event {
            ProgramEvent::AssistantDelta { text, .. } => recorded.text += text,
            ProgramEvent::ThinkingDelta { text, .. } => recorded.thoughts += text,
            ProgramEvent::ToolCallStarted { id, name, arguments, .. } => {
                recorded.calls.push(json!([id, name, arguments]));
            }
            ProgramEvent::ToolCallFinished { id, output, is_error, exit_code, .. } => {
                recorded.results.push(json!([id, output, is_error, exit_code]));
            }
            ProgramEvent::SessionId { id } => recorded.sessions.push(id.clone()),
            ProgramEvent::Usage(usage) => {
                recorded.used =
                    Some([usage.input_tokens, usage.output_tokens, usage.cached_tokens]);
            }
            ProgramEvent::Final(answer) => {
                recorded.end.get_or_insert((true, answer.text.clone(), answer.cost_usd));
            }
            // A failure is terminal, even after an answer.
            ProgramEvent::Error(failure) => {
                let text = failure.message.clone();
                let cost = failure.answer.as_ref().and_then(|answer| answer.cost_usd);
                recorded.end = Some((false, text, cost));
            }
            _ => {}
        }
    }
    recorded
}

/// `.[] | select(.[key] == value)`.
fn select<'a>(lines: &'a [Value], key: &str, value: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line[key] == value).collect()
}

/// The texts at a pointer, joined.
fn joined(values: &[&Value], pointer: &str) -> String {
    values.iter().filter_map(|value| value.pointer(pointer)?.as_str()).collect()
}

/// The ids at a key, without consecutive duplicates.
fn sessions(lines: &[Value], key: &str) -> Vec<String> {
    let mut ids: Vec<String> =
        lines.iter().filter_map(|line| line[key].as_str()).map(str::to_owned).collect();
    ids.dedup();
    ids
}

fn claude(lines: &[Value]) -> Recorded {
    let assistant = select(lines, "type", "assistant");
    let blocks = |lines: &[&Value]| -> Vec<Value> {
        let contents = lines.iter().map(|line| match &line["message"]["content"] {
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            content => content.as_array().cloned().unwrap_or_default(),
        });
        contents.flatten().collect()
    };
    let from_assistant = blocks(&assistant);
    let from_user = blocks(&select(lines, "type", "user"));
    let calls = select(&from_assistant, "type", "tool_use")
        .into_iter()
        .filter(|call| call["id"].is_string());
    let results = select(&from_user, "type", "tool_result");
    let result = select(lines, "type", "result")
        .into_iter()
        .find(|line| line["subtype"].is_string() || line["result"].is_string())
        .cloned();
    // The usage of the result. Without a result, the last report for each message of the agent itself; with partial
    // messages, it is in the stream.
    let used = match &result {
        Some(result) if result["usage"]["input_tokens"].is_u64() => {
            Some(claude_usage(&result["usage"]))
        }
        _ => claude_messages(&assistant),
    };
    Recorded {
        text: joined(&select(&from_assistant, "type", "text"), "/text"),
        thoughts: joined(&select(&from_assistant, "type", "thinking"), "/thinking"),
        calls: calls.map(|call| json!([call["id"], call["name"], call["input"]])).collect(),
        results: results
            .iter()
            .map(|result| {
                let failed = result["is_error"] == true;
                json!([result["tool_use_id"], result["content"], failed, null])
            })
            .collect(),
        sessions: sessions(lines, "session_id"),
        end: result.map(|result| {
            let well = result["subtype"] == "success" && result["is_error"] == false;
            let errors = result["errors"].as_array().into_iter().flatten();
            let errors: Vec<&str> = errors.filter_map(Value::as_str).collect();
            let text = match result["result"].as_str() {
                Some(text) if well || !text.is_empty() => text.to_owned(),
                _ if errors.is_empty() => {
                    format!("the program reported {}", result["subtype"].as_str().unwrap_or(""))
                }
                _ => errors.join("; "),
            };
            (well, text, result["total_cost_usd"].as_f64())
        }),
        used,
    }
}

fn claude_usage(usage: &Value) -> [Option<u64>; 3] {
    ["input_tokens", "output_tokens", "cache_read_input_tokens"].map(|key| usage[key].as_u64())
}

fn claude_messages(assistant: &[&Value]) -> Option<[Option<u64>; 3]> {
    let own = assistant.iter().filter(|line| line["parent_tool_use_id"].is_null());
    let usages: BTreeMap<&str, [Option<u64>; 3]> = own
        .filter(|line| line["message"]["usage"].is_object())
        .filter_map(|line| {
            Some((line["message"]["id"].as_str()?, claude_usage(&line["message"]["usage"])))
        })
        .collect();
    let sum = |at: usize| usages.values().filter_map(|usage| usage[at]).reduce(|a, b| a + b);
    (!usages.is_empty()).then(|| [sum(0), sum(1), sum(2)])
}

fn codex(lines: &[Value]) -> Recorded {
    let items: Vec<&Value> = lines.iter().filter(|line| line["item"].is_object()).collect();
    let mut ids: Vec<&str> = items.iter().filter_map(|line| line["item"]["id"].as_str()).collect();
    let mut seen = Vec::new();
    ids.retain(|id| {
        let new = !seen.contains(id);
        seen.push(id);
        new
    });
    // The final or last state of an item.
    let last = |id: &str| {
        let mine = || items.iter().filter(move |line| line["item"]["id"] == id);
        let ended = mine().find(|line| line["type"] == "item.completed");
        ended.or(mine().next_back()).map(|line| &line["item"]).cloned().unwrap_or_default()
    };
    let texts = |kind: &str| -> Vec<String> {
        let of_kind = ids.iter().map(|id| last(id)).filter(|item| item["type"] == kind);
        of_kind
            .map(|item| {
                let text = item["text"].as_str().or(item["content"]["text"].as_str());
                text.unwrap_or_default().to_owned()
            })
            .collect()
    };
    let acts = ["command_execution", "file_change", "mcp_tool_call", "web_search"];
    let acts: Vec<Value> = ids
        .iter()
        .map(|id| last(id))
        .filter(|item| acts.iter().any(|act| item["type"] == *act))
        .collect();
    let turn = select(lines, "type", "turn.completed").first().copied();
    let failed = select(lines, "type", "turn.failed").first().copied();
    let answered = turn.filter(|turn| turn["status"] != "pending").map(|turn| {
        let final_text = turn["final_response"]["text"].as_str().map(str::to_owned);
        let last = || texts("agent_message").pop().unwrap_or_default();
        let text = final_text.unwrap_or_else(last);
        match turn["status"].as_str() {
            None | Some("completed") => (true, text, None),
            Some(other) => (false, format!("the turn is {other}: {text}"), None),
        }
    });
    let failure = failed.map(|failed| {
        (false, failed["error"]["message"].as_str().unwrap_or_default().to_owned(), None)
    });
    let used = lines.iter().rev().find(|line| line["usage"]["input_tokens"].is_u64());
    Recorded {
        text: texts("agent_message").concat(),
        thoughts: texts("reasoning").concat(),
        calls: acts.iter().map(codex_call).collect(),
        results: acts
            .iter()
            .filter(|act| act["status"] != "in_progress")
            .map(codex_result)
            .collect(),
        sessions: sessions(lines, "thread_id"),
        end: failure.or(answered),
        used: used.map(|line| {
            ["input_tokens", "output_tokens", "cached_input_tokens"]
                .map(|key| line["usage"][key].as_u64())
        }),
    }
}

fn codex_call(item: &Value) -> Value {
    match item["type"].as_str() {
        Some("command_execution") => {
            json!([item["id"], "command_execution", {"command": item["command"]}])
        }
        Some("file_change") => json!([item["id"], "file_change", {"changes": item["changes"]}]),
        Some("mcp_tool_call") => {
            let server = item["server"].as_str();
            let tool = item["tool"].as_str();
            let name = format!("mcp__{}__{}", server.unwrap_or(""), tool.unwrap_or(""));
            json!([item["id"], name, item["arguments"]])
        }
        _ => json!([item["id"], "web_search", {"query": item["query"]}]),
    }
}

fn codex_result(item: &Value) -> Value {
    let failed = item["status"] == "failed";
    let output = match item["type"].as_str() {
        Some("command_execution") => &item["aggregated_output"],
        Some("file_change") => &item["status"],
        _ if failed => &item["error"],
        _ => &item["result"],
    };
    json!([item["id"], output, failed, item["exit_code"]])
}

fn gemini(lines: &[Value]) -> Recorded {
    let messages: Vec<&Value> =
        select(lines, "type", "message").into_iter().filter(|m| m["role"] == "assistant").collect();
    let calls = select(lines, "type", "tool_use").into_iter();
    let results = select(lines, "type", "tool_result").into_iter();
    let last_call = lines.iter().rposition(|line| line["type"] == "tool_use").unwrap_or(0);
    let last: Vec<&Value> =
        lines[last_call..].iter().filter(|line| line["role"] == "assistant").collect();
    let result = select(lines, "type", "result").first().copied();
    Recorded {
        text: joined(&messages, "/content"),
        thoughts: String::new(),
        calls: calls
            .map(|call| json!([call["tool_id"], call["tool_name"], call["parameters"]]))
            .collect(),
        results: results
            .map(|result| {
                json!([result["tool_id"], result["output"], result["status"] == "error", null])
            })
            .collect(),
        sessions: sessions(lines, "session_id"),
        end: result.map(|_| (true, joined(&last, "/content"), None)),
        used: result.map(|result| {
            ["input_tokens", "output_tokens", "cached"].map(|key| result["stats"][key].as_u64())
        }),
    }
}

fn opencode(lines: &[Value]) -> Recorded {
    let texts = select(lines, "type", "text");
    let calls = select(lines, "type", "tool_use");
    let steps = select(lines, "type", "step_finish");
    let sum = |pointer: &str| {
        steps.iter().filter_map(|step| step.pointer(pointer)?.as_u64()).reduce(|a, b| a + b)
    };
    let cost = steps.iter().filter_map(|step| step["part"]["cost"].as_f64()).reduce(|a, b| a + b);
    let last = steps.last().filter(|step| step["part"]["reason"] != "tool-calls");
    let last_text: Vec<&Value> = last.map_or_else(Vec::new, |step| {
        let message = &step["part"]["messageID"];
        texts.iter().filter(|text| text["part"]["messageID"] == *message).copied().collect()
    });
    let error = select(lines, "type", "error").first().copied();
    let error = error.and_then(|error| error["error"]["data"]["message"].as_str());
    Recorded {
        text: joined(&texts, "/part/text"),
        thoughts: String::new(),
        calls: calls
            .iter()
            .map(|call| {
                let part = &call["part"];
                json!([part["callID"], part["tool"], part["state"]["input"]])
            })
            .collect(),
        results: calls
            .iter()
            .map(|call| {
                let id = &call["part"]["callID"];
                let state = &call["part"]["state"];
                let exits = ["exit", "exitCode"].map(|key| state["metadata"][key].as_i64());
                json!([id, state["output"], false, exits[0].or(exits[1])])
            })
            .collect(),
        sessions: sessions(lines, "sessionID"),
        end: match error {
            Some(message) => Some((false, message.to_owned(), cost)),
            None => last.map(|step| {
                if step["part"]["reason"] == "stop" {
                    return (true, joined(&last_text, "/part/text"), cost);
                }
                (false, "the last step of the program has no reason".to_owned(), cost)
            }),
        },
        used: sum("/part/tokens/input")
            .map(|input| [Some(input), sum("/part/tokens/output"), sum("/part/tokens/cache/read")]),
    }
}
