//! Changing what people and applications store with a session: its title and its metadata.

use abide_schema::{Abort, Code, Context, Json, Refusal, limits, reducer};
use serde_json::{Map, Value as JsonValue};

use super::{Session, open};

/// Changes the title and the metadata of a session that has not ended. What is omitted stays.
#[reducer(roles(app, supervisor))]
pub fn update_session(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    /// The title for people; an empty one removes it.
    title: Option<String>,
    /// A JSON merge patch (RFC 7396) of the metadata: a member that is null is removed.
    metadata: Option<Map<String, JsonValue>>,
) -> Result<Session, Abort> {
    if title.is_none() && metadata.is_none() {
        let detail = "at least one of title and metadata is required";
        return Err(Refusal::new(Code::BadArguments, detail).into());
    }
    let mut session = open(ctx, &session_id)?;
    if let Some(title) = title {
        session.title = (!title.is_empty()).then_some(title);
    }
    if let Some(patch) = metadata {
        let mut metadata = session.metadata.value();
        merge(&mut metadata, patch);
        session.metadata = Json::from(metadata);
        // Each patch fits in a call, but many of them could grow the row, which every later call of the session writes.
        let bytes = session.metadata.as_str().len();
        if bytes > limits::SESSION_METADATA_BYTES {
            let max = limits::SESSION_METADATA_BYTES;
            let detail = format!("metadata would have {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("remove members by null, or keep large values in entries")
                .into());
        }
    }
    session.updated_at = ctx.now;
    session.seq = ctx.seq;
    ctx.update(&session)?;
    Ok(session)
}

/// Applies a merge patch (RFC 7396) to an object. A target that is no object is replaced.
fn merge(target: &mut JsonValue, patch: Map<String, JsonValue>) {
    if !target.is_object() {
        *target = JsonValue::Object(Map::new());
    }
    let JsonValue::Object(members) = target else { return };
    for (name, value) in patch {
        match value {
            JsonValue::Null => {
                members.remove(&name);
            }
            JsonValue::Object(patch) => {
                merge(members.entry(name).or_insert(JsonValue::Null), patch);
            }
            value => {
                members.insert(name, value);
            }
        }
    }
}
