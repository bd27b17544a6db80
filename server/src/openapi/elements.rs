//! Elements of the document that several paths share.

use serde_json::{Value as JsonValue, json};

/// Prefix of references to schemas.
pub(super) const PLACE: &str = "#/components/schemas/";

pub(super) fn schema_ref(name: &str) -> JsonValue {
    json!({"$ref": format!("{PLACE}{name}")})
}

/// Returns the responses of an operation: success, or a problem document.
#[must_use]
pub fn answers(meaning: &str, kind: &str, schema: JsonValue) -> JsonValue {
    json!({
        "200": {"description": meaning, "content": {kind: {"schema": schema}}},
        "default": {"$ref": "#/components/responses/problem"},
    })
}

/// Returns the schema of a string with a description.
pub(super) fn described_text(meaning: &str) -> JsonValue {
    json!({"type": "string", "description": meaning})
}

pub(super) fn list_of(items: JsonValue) -> JsonValue {
    json!({"type": "array", "items": items})
}

pub(super) fn object(properties: JsonValue, required: &[&str]) -> JsonValue {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
    })
}

/// Returns the header `Idempotency-Key` as a parameter.
#[must_use]
pub fn idempotency_key() -> JsonValue {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes a retry safe: the same key with the same arguments \
            returns the result of the first call.",
        "schema": {"type": "string", "maxLength": abide_schema::limits::NAME_BYTES},
    })
}
