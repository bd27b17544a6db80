//! The routes of prompts in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::agents::{json_body, operation, parameter, row_answer};
use super::elements::{idempotency_key, object, schema_ref};

/// `/v1/prompts`.
pub(super) fn paths() -> [(&'static str, JsonValue); 4] {
    let name = parameter("name", "path", "string", "The prompt.");
    let label_name = parameter("label", "path", "string", "The label.");
    let all = object(
        json!({"seq": schema_ref("seq"), "prompts": {"type": "array", "items": prompt_schema(false)},
            "next": {"type": ["string", "null"], "description": "`after` of the next page."}}),
        &["seq", "prompts", "next"],
    );
    let mut list = operation("prompts", "Lists prompts by name, at most 500.", all);
    list["parameters"] =
        json!([parameter("after", "query", "string", "Only names after this one.")]);
    let one = object(
        json!({"seq": schema_ref("seq"), "prompt": prompt_schema(true)}),
        &["seq", "prompt"],
    );
    let mut get = operation("prompt", "Returns a version of a prompt.", one);
    get["parameters"] = json!([
        name,
        parameter("at", "query", "string", "A version or a label; the newest if omitted.")
    ]);
    let prompt_row = row_answer("prompt", "The row of `prompts`.");
    let meaning = "Adds a version to a prompt, and creates the prompt if there is none.";
    let mut put = operation("add_prompt_version", meaning, prompt_row);
    put["parameters"] = json!([name, idempotency_key()]);
    put["requestBody"] = json_body(&version_schema());
    let text = object(
        json!({"seq": schema_ref("seq"), "name": {"type": "string"},
            "version": {"type": "integer"}, "text": {"type": "string"}}),
        &["seq", "name", "version", "text"],
    );
    let meaning = "Returns the text of a version with values for its variables.";
    let mut render = operation("render_prompt", meaning, text);
    render["parameters"] = json!([name]);
    let values = object(
        json!({"at": {"type": "string"},
            "variables": {"type": "object", "additionalProperties": {"type": "string"}}}),
        &[],
    );
    render["requestBody"] = json!({"content": {"application/json": {"schema": values}}});
    let label_row = row_answer("label", "The row of `prompt_labels`.");
    let mut label =
        operation("set_prompt_label", "Points a label to a version.", label_row.clone());
    label["parameters"] = json!([name, label_name, idempotency_key()]);
    label["requestBody"] =
        json_body(&object(json!({"version": {"type": "integer"}}), &["version"]));
    let mut unlabel = operation("remove_prompt_label", "Removes a label.", label_row);
    unlabel["parameters"] = json!([name, label_name, idempotency_key()]);
    [
        ("/v1/prompts", json!({"get": list})),
        ("/v1/prompts/{name}", json!({"get": get, "put": put})),
        ("/v1/prompts/{name}/render", json!({"post": render})),
        ("/v1/prompts/{name}/labels/{label}", json!({"put": label, "delete": unlabel})),
    ]
}

fn prompt_schema(with_text: bool) -> JsonValue {
    let names = json!({"type": "array", "items": {"type": "string"}});
    let mut all = object(
        json!({"name": {"type": "string"}, "description": {"type": ["string", "null"]},
            "version": {"type": "integer"}, "variables": names, "scope": {"type": "object"}}),
        &["name", "version", "variables", "scope"],
    );
    if with_text {
        all["properties"]["text"] = json!({"type": "string"});
        all["properties"]["newest"] =
            json!({"type": "integer", "description": "The newest version."});
        all["properties"]["labels"] =
            json!({"type": "object", "additionalProperties": {"type": "integer"}});
    }
    all
}

fn version_schema() -> JsonValue {
    object(
        json!({
            "text": {"type": "string", "description": "The text, with variables as `{{name}}`."},
            "description": {"type": "string"},
            "labels": {"type": "array", "items": {"type": "string"},
                "description": "Labels that point to this version from now on."},
            "expected_version": {"type": "integer",
                "description": "The newest version; otherwise the call is a conflict."},
            "scope": {"type": "object", "description": "For a new prompt."},
        }),
        &["text"],
    )
}
