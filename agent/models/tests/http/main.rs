//! Network providers on loopback: requests, answers and failures.
//!
//! Tests of timeouts use a paused clock.

mod broken;
mod recorded;
mod refusals;
mod requests;
mod server;
mod silence;

use abide_models::{
    ModelError, ModelEvent, ModelMessage, ModelProvider as _, ModelRequest, ModelStream, Protocol,
    Remote, RemoteSettings, Secret,
};
use futures_util::StreamExt as _;

use server::{Reply, Server};

/// A key that must never appear in output.
const KEY: &str = "sk-test-0123456789";

/// A provider with this protocol, at a URL.
fn remote(protocol: Protocol, url: &str) -> Remote {
    let settings = RemoteSettings {
        base_url: Some(url.to_owned()),
        key: Some(Secret::new(KEY)),
        ..RemoteSettings::new("tested", protocol)
    };
    Remote::new(settings).expect("the settings are valid")
}

/// A simple request.
fn question() -> ModelRequest {
    let messages = vec![ModelMessage::user("How is the weather?")];
    ModelRequest { model: "asked".to_owned(), messages, ..ModelRequest::default() }
}

/// All events of a stream.
async fn all(stream: ModelStream) -> Vec<Result<ModelEvent, ModelError>> {
    stream.collect().await
}

/// All events of one answer.
async fn received(protocol: Protocol, reply: Reply) -> Vec<Result<ModelEvent, ModelError>> {
    let server = Server::start(vec![reply]).await;
    all(remote(protocol, &server.url).stream(question())).await
}

/// The events in short form: joined chunks, calls, and the end.
fn shown(events: &[Result<ModelEvent, ModelError>]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for event in events {
        let (label, piece) = match event {
            Ok(ModelEvent::Text(piece)) => ("text", piece.clone()),
            Ok(ModelEvent::Reasoning(piece)) => ("reasoning", piece.clone()),
            Ok(ModelEvent::Call(call)) => {
                ("call", format!("{} {} {}", call.id, call.name, call.arguments))
            }
            Ok(ModelEvent::Restarted(restart)) => ("restarted", format!("{restart:?}")),
            Ok(ModelEvent::Answer(answer)) => {
                let usage = answer.usage;
                let count = |tokens: Option<u64>| tokens.map_or("-".to_owned(), |n| n.to_string());
                let usage = [
                    count(usage.input_tokens),
                    count(usage.output_tokens),
                    count(usage.cached_tokens),
                    count(usage.reasoning_tokens),
                    format!("{:?}", usage.completeness).to_lowercase(),
                ];
                ("answer", format!("{:?} {} {}", answer.stop, usage.join("/"), answer.model))
            }
            Err(error) => {
                let wait = error.retry_after.map(|wait| format!(" (after {wait:?})"));
                ("error", format!("{}: {error}{}", error.kind, wait.unwrap_or_default()))
            }
        };
        match lines.last_mut().and_then(|line| line.strip_prefix(label).map(str::to_owned)) {
            Some(begun) if ["text", "reasoning"].contains(&label) => {
                *lines.last_mut().expect("there is at least one") =
                    format!("{label}{begun}|{}", piece.escape_debug());
            }
            _ => lines.push(format!("{label} {}", piece.escape_debug())),
        }
    }
    lines.join("\n")
}
