//! `GET /metrics`, in the text format of Prometheus (0.0.4).

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};

use crate::routes::App;

/// What is counted and measured, now.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let (engine, life) = (&app.engine, &app.life);
    let gauges = [
        ("seq", "The last event that is on the disk.", engine.durable_seq().0.unsigned_abs()),
        (
            "writer_queue_bytes",
            "Bytes of the calls that wait for the writer.",
            engine.backlog() as u64,
        ),
        ("connections", "Connections that are open, of every kind.", life.connections() as u64),
        ("websockets", "WebSockets that are open.", life.websockets() as u64),
        ("ready", "1 while calls are taken.", u64::from(engine.ready().is_ok())),
    ];
    let mut text = String::new();
    for (name, meaning, value) in gauges.into_iter().chain(engine.metrics().read()) {
        one(&mut text, name, meaning, value);
    }
    let version = env!("CARGO_PKG_VERSION");
    text.push_str("# HELP abide_build_info What is running.\n# TYPE abide_build_info gauge\n");
    // Writing into a String cannot fail.
    let _ = writeln!(text, "abide_build_info{{version=\"{version}\"}} 1");
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn one(text: &mut String, name: &str, meaning: &str, value: u64) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    let _ = write!(
        text,
        "# HELP abide_{name} {meaning}\n# TYPE abide_{name} {kind}\nabide_{name} {value}\n"
    );
}
