//! `POST /v1/sql`.

use std::convert::Infallible;

use abide_schema::Seq;
use abide_schema::limits::COUNTED_BYTES;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde_json::{Map, Value as JsonValue};

use crate::app_state::{AppState, CallerExtension, SessionExtension};
use crate::body::RequestBody;
use crate::frames::{CountedText, EncodedResult};
use crate::problem::Problem;
use crate::routes::response::counted_json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SqlBody {
    sql: String,
    #[serde(default)]
    params: Map<String, JsonValue>,
    #[serde(default)]
    as_of: Option<Seq>,
}

/// Runs one read-only statement.
pub(super) async fn sql(
    State(app): State<AppState>,
    by: CallerExtension,
    Extension(mut session): SessionExtension,
    content: RequestBody,
) -> Result<Response, Problem> {
    let example = r#"{"sql": "SELECT …", "params": {…}, "as_of": 40}, the last two optional"#;
    let SqlBody { sql, params, as_of } = content.envelope_in_turn(example).await?;
    let sink = EncodedResult::for_response(app.engine.buffers().reserve(&by));
    let result = app.engine.read_rows(&by, &sql, &params, as_of, sink).await?;
    // The credential may have been revoked while the query waited for a reader.
    app.authenticator.check(&mut session).await?;
    let text = result.into_text()?;
    if text.bytes() < COUNTED_BYTES {
        return Ok(counted_json(text.join().0, app.engine.buffers(), &by)?);
    }
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(([kind], Body::from_stream(send_parts(text))).into_response())
}

/// Returns a response in parts: each is freed when the socket has taken it.
fn send_parts(text: CountedText) -> impl Stream<Item = Result<String, Infallible>> {
    let CountedText { parts, reservation, .. } = text;
    stream::iter(parts).map(move |part| {
        let _counted = &reservation;
        Ok(part)
    })
}
