//! A reducer as a route: its arguments are the body and the names of the path, and its result is a member of the answer.

use abide_schema::wire::BatchCall;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::{Map, Value as JsonValue, json};

use super::response::committed_value;
use super::rows::row_of_result;
use super::runs::reducer_call;
use crate::app_state::{AppState, CallerExtension};
use crate::body::RequestBody;
use crate::connections::parse_turns::begin;
use crate::problem::Problem;
use crate::single::idempotency_key;

/// A reducer as a route.
pub(super) struct ReducerRoute {
    pub(super) reducer: &'static str,
    /// The member of the answer that has the result.
    pub(super) result: &'static str,
    pub(super) status: StatusCode,
}

/// Returns the arguments of a body, and the id of the path. The reducer refuses those that it does not have.
pub(super) async fn arguments(
    content: &RequestBody,
    shape: &str,
    name: &str,
    id: &str,
) -> Result<JsonValue, Problem> {
    let _turn = content.turn().await;
    let mut args = match content.value()? {
        JsonValue::Null => Map::new(),
        _ => content.envelope(shape)?,
    };
    args.insert(name.to_owned(), json!(id));
    Ok(JsonValue::Object(args))
}

impl ReducerRoute {
    /// Makes the call.
    pub(super) async fn answer(
        &self,
        app: &AppState,
        by: &CallerExtension,
        headers: &HeaderMap,
        content: &RequestBody,
        args: JsonValue,
    ) -> Result<Response, Problem> {
        let permit = app.admit_call(by, content.bytes()).await?;
        let key = idempotency_key(headers)?;
        let BatchCall { reducer, args } = reducer_call(self.reducer, args);
        let done = begin(permit, app.engine.call(by, &reducer, &args, key)).await?;
        let name = self.result;
        let reply = move || {
            let result = row_of_result(&done.result);
            json!({"seq": done.seq, "duplicate": done.duplicate, name: result})
        };
        let mut response = committed_value(app, by, reply).await?;
        *response.status_mut() = self.status;
        Ok(response)
    }
}
