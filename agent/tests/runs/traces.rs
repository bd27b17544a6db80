//! Traces: one span for each run, request and call, with ids that follow from rows; a sink that fails makes the trace
//! partial and nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use abide_agent::{Catalog, Environment, Runtime, Settings, TraceConfig, TraceSink, Tracer};
use abide_client::Abide;
use abide_client::arguments::{CreateSession, StartRun};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::fixture::{define, providers, temporary_folder, tools};
use crate::pauses::attend;

const AGENTS: [(&str, &str); 2] = [
    ("clerk", "config: { provider: script }\nsubagents: [helper]\n"),
    (
        "helper",
        "mode: subagent\nas_tool: { name: arrange }\nconfig: { provider: helps }\ntools: [pay]\n\
         interrupt_on: { pay: true }\n",
    ),
];

const SCRIPTS: [(&str, &str); 2] = [
    (
        "script",
        "answers: [{ calls: [{ name: arrange, arguments: { input: Pay A. } }], \
         usage: { input_tokens: 7, output_tokens: 3 } }, { text: It is paid. }]",
    ),
    ("helps", "answers: [{ calls: [{ name: pay, arguments: { order: A } }] }, { text: Paid. }]"),
];

/// Runs the agents with these sinks, and returns the status of each trace with its error.
async fn traced(folder: &Path, config: &TraceConfig) -> Vec<(String, String, Option<String>)> {
    let tracer = Tracer::open(config, folder, &Environment::of_process());
    let tracer = tracer.expect("the sinks are valid").expect("there are sinks");
    traced_by(folder, tracer).await
}

/// Runs the agents with a tracer, and returns the status of each trace with its error.
async fn traced_by(folder: &Path, tracer: Tracer) -> Vec<(String, String, Option<String>)> {
    for (name, text) in AGENTS {
        define(folder, &format!("{name}.yaml"), &format!("name: {name}\n{text}"));
    }
    let abide = Abide::open(folder.join("abide.db")).expect("the file opens");
    let ours = tools(folder.join("ledger"));
    let catalog = Catalog::new(folder, ours.clone());
    let settings = Settings::named("runtime");
    let runtime = Runtime::builder(abide.clone(), providers(&SCRIPTS), ours, catalog, settings)
        .traces(tracer)
        .build();
    runtime.register().await.expect("it is registered");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { runtime.run(stopped).await.expect("it runs") });
    abide.call(CreateSession::new("clerk").id("s1")).await.expect("it is created");
    abide.call(StartRun::new("s1").id("r1").input("Pay order A.")).await.expect("it starts");
    attend(&abide, "r1").await;
    let sql = "SELECT run_id, status, error FROM run_traces";
    let mut rows = abide.subscribe(sql).await.expect("the subscription starts");
    while rows.rows().len() < 2 {
        rows.try_next().await.expect("the file is open");
    }
    let mut found: Vec<(String, String, Option<String>)> =
        rows.typed_rows().expect("they are rows");
    found.sort();
    stop.cancel();
    task.await.expect("the task succeeds");
    abide.close().await;
    found
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("there is a file");
    text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

#[tokio::test]
async fn one_span_per_run_model_call_tool_call_and_delegation() {
    let folder = temporary_folder();
    let sinks = vec![TraceSink::File { path: "traces.jsonl".into() }];
    let traces = traced(folder.path(), &TraceConfig { log_data: true, sinks }).await;
    assert!(traces.iter().all(|(_, status, error)| status == "complete" && error.is_none()));
    let spans = lines(&folder.path().join("traces.jsonl"));
    let by_id: BTreeMap<&str, &Value> =
        spans.iter().map(|span| (span["span_id"].as_str().expect("it has an id"), span)).collect();
    assert_eq!(by_id.len(), spans.len(), "the ids differ");
    let mut output: Vec<String> = spans
        .iter()
        .map(|span| {
            let parent = span["parent_span_id"].as_str().map(|id| by_id[id]["name"].to_string());
            format!("{} < {}", span["name"], parent.unwrap_or_default())
        })
        .collect();
    output.sort();
    expect_test::expect![[r#"
        "chat helps-model" < "invoke_agent helper"
        "chat helps-model" < "invoke_agent helper"
        "chat script-model" < "invoke_agent clerk"
        "chat script-model" < "invoke_agent clerk"
        "execute_tool arrange" < "invoke_agent clerk"
        "execute_tool pay" < "invoke_agent helper"
        "invoke_agent clerk" < 
        "invoke_agent helper" < "execute_tool arrange""#]]
    .assert_eq(&output.join("\n"));
    let traces: Vec<&Value> = spans.iter().map(|span| &span["trace_id"]).collect();
    assert!(traces.iter().all(|trace| *trace == traces[0]), "they are one trace");
    let pay = spans.iter().find(|span| span["name"] == "execute_tool pay").expect("it ran");
    assert_eq!(pay["attributes"]["gen_ai.tool.call.arguments"], r#"{"order":"A"}"#);
    assert!(spans.iter().all(|span| span["start_us"].as_i64() <= span["end_us"].as_i64()));
}

#[tokio::test]
async fn log_data_false_omits_content() {
    let folder = temporary_folder();
    let sinks = vec![TraceSink::File { path: "traces.jsonl".into() }];
    traced(folder.path(), &TraceConfig { log_data: false, sinks }).await;
    let text = std::fs::read_to_string(folder.path().join("traces.jsonl")).expect("a file");
    for content in ["Pay", "paid", "order"] {
        assert!(!text.contains(content), "{content}");
    }
    assert!(text.contains("\"gen_ai.usage.input_tokens\":7"));
}

/// One failing sink makes the trace partial; the other one has it, and the run is done.
#[tokio::test]
async fn a_failing_sink_makes_the_trace_partial() {
    let folder = temporary_folder();
    // Nothing listens: the port was free a moment ago, and is closed again.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it has an address").port();
    drop(listener);
    let none = BTreeMap::new;
    let url = format!("http://127.0.0.1:{port}/v1/traces");
    let otlp = TraceSink::Otlp { url, headers: none(), headers_env: none() };
    let file = TraceSink::File { path: "traces.jsonl".into() };
    let config = TraceConfig { log_data: false, sinks: vec![otlp, file] };
    let traces = traced(folder.path(), &config).await;
    assert!(traces.iter().all(|(_, status, error)| status == "partial" && error.is_some()));
    assert_eq!(lines(&folder.path().join("traces.jsonl")).len(), 8);
}

/// `customSink`: a function gets the spans of each run. One that panics makes the trace partial.
#[tokio::test]
async fn a_sink_in_rust_gets_the_spans() {
    let folder = temporary_folder();
    let (sender, received) = channel();
    let tracer = Tracer::new(false).sink(move |spans| {
        sender.send(spans.to_vec()).map_err(|why| why.to_string())?;
        if spans.iter().any(|span| span["name"] == "invoke_agent helper") {
            panic!("the sink fails")
        } else {
            Ok(())
        }
    });
    let traces = traced_by(folder.path(), tracer).await;
    let expected = [("r1", "complete", None), ("r1~1.1~run", "partial", Some("the sink panicked"))];
    let expected = expected
        .map(|(run, status, error)| (run.to_owned(), status.to_owned(), error.map(str::to_owned)));
    assert_eq!(traces, expected);
    let spans: Vec<Value> = received.try_iter().flatten().collect();
    assert_eq!(spans.len(), 8);
    assert!(spans.iter().all(|span| span["attributes"]["gen_ai.tool.call.arguments"].is_null()));
}

#[test]
fn a_wrong_sink_is_refused_at_the_start() {
    let environment: Environment =
        [("SECRET".to_owned(), "from a file\n".to_owned())].into_iter().collect();
    let valid = "http://127.0.0.1:4318/v1/traces";
    for (url, name, variable, expected) in [
        ("collector", None, None, "traces: collector is not an HTTP URL"),
        ("ftp://host/", None, None, "traces: ftp://host/ is not an HTTP URL"),
        (valid, Some("a b"), None, "traces: \"a b\" is not a valid header name"),
        (valid, None, Some("NONE"), "traces: there is no environment variable NONE"),
        // Regression: it was refused at each run, as "builder error".
        (
            valid,
            None,
            Some("SECRET"),
            "traces: the value of header authorization has characters that are not allowed",
        ),
    ] {
        let sink = TraceSink::Otlp {
            url: url.to_owned(),
            headers: name.map(|name| (name.to_owned(), String::new())).into_iter().collect(),
            headers_env: variable
                .map(|variable| ("authorization".to_owned(), variable.to_owned()))
                .into_iter()
                .collect(),
        };
        let config = TraceConfig { sinks: vec![sink], ..TraceConfig::default() };
        let opened = Tracer::open(&config, Path::new("."), &environment);
        assert_eq!(opened.err().as_deref(), Some(expected));
    }
}

/// A collector that refuses the first request, and accepts the others. Returns its address and the bodies that it has
/// accepted.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has an address");
    let (accepted, bodies) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = BufReader::new(stream.expect("it connects"));
            let mut line = String::new();
            let mut length = 0;
            while stream.read_line(&mut line).expect("it is read") > 2 {
                let header = line.to_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("it is a number");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("it is read");
            let status = if number == 0 { "503 Service Unavailable" } else { "200 OK" };
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
            stream.get_mut().write_all(answer.as_bytes()).expect("it is written");
            let body = serde_json::from_slice(&body).expect("it is JSON");
            if number > 0 && accepted.send(body).is_err() {
                return;
            }
        }
    });
    (format!("http://{address}/v1/traces"), bodies)
}

/// One transient failure loses no span: the request is repeated, and later ones follow.
#[tokio::test]
async fn a_sink_that_recovers_gets_the_whole_trace() {
    let folder = temporary_folder();
    let (url, bodies) = collector();
    let otlp = TraceSink::Otlp { url, headers: BTreeMap::new(), headers_env: BTreeMap::new() };
    let config = TraceConfig { log_data: true, sinks: vec![otlp] };
    let traces = traced(folder.path(), &config).await;
    assert!(traces.iter().all(|(_, status, error)| status == "complete" && error.is_none()));
    let mut names: Vec<String> = bodies
        .try_iter()
        .flat_map(|body| {
            let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].clone();
            let spans = spans.as_array().expect("it has spans").clone();
            spans.into_iter().map(|span| span["name"].as_str().expect("a name").to_owned())
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat helps-model",
            "chat helps-model",
            "chat script-model",
            "chat script-model",
            "execute_tool arrange",
            "execute_tool pay",
            "invoke_agent clerk",
            "invoke_agent helper"
        ]
    );
}
