//! The routes of prompts in the OpenAPI document.

use serde_json::{Value as JsonValue, json};

use super::agents::{body, of_row, operation, parameter};
use super::elements::{idempotency_key, object, schema_ref};

/// `/v1/prompts`.
pub(super) fn paths() -> [(&'static str, JsonValue); 4] {
    let name = || parameter("name", "path", "string", "The prompt.");
    let names =
        || json!([name(), parameter("label", "path", "string", "The label."), idempotency_key()]);
    let all = object(
        json!({"seq": schema_ref("seq"), "prompts": {"type": "array", "items": prompt(false)},
            "next": {"type": ["string", "null"], "description": "`after` of the next page."}}),
        &["seq", "prompts", "next"],
    );
    let mut list = operation("prompts", "Lists prompts by name, at most 500.", all);
    list["parameters"] =
        json!([parameter("after", "query", "string", "Only names after this one.")]);
    let one = object(json!({"seq": schema_ref("seq"), "prompt": prompt(true)}), &["seq", "prompt"]);
    let mut get = operation("prompt", "Returns a version of a prompt.", one);
    get["parameters"] = json!([
        name(),
        parameter("at", "query", "string", "A version or a label; the newest if omitted.")
    ]);
    let row = || of_row("prompt", "The row of `prompts`.");
    let meaning = "Adds a version to a prompt, and creates the prompt if there is none.";
    let mut put = operation("add_prompt_version", meaning, row());
    put["parameters"] = json!([name(), idempotency_key()]);
    put["requestBody"] = body(&version());
    let text = object(
        json!({"seq": schema_ref("seq"), "name": {"type": "string"},
            "version": {"type": "integer"}, "text": {"type": "string"}}),
        &["seq", "name", "version", "text"],
    );
    let meaning = "Returns the text of a version with values for its variables.";
    let mut render = operation("render_prompt", meaning, text);
    render["parameters"] = json!([name()]);
    let values = object(
        json!({"at": {"type": "string"},
            "variables": {"type": "object", "additionalProperties": {"type": "string"}}}),
        &[],
    );
    render["requestBody"] = json!({"content": {"application/json": {"schema": values}}});
    let row = || of_row("label", "The row of `prompt_labels`.");
    let mut label = operation("set_prompt_label", "Points a label to a version.", row());
    label["parameters"] = names();
    label["requestBody"] = body(&object(json!({"version": {"type": "integer"}}), &["version"]));
    let mut unlabel = operation("remove_prompt_label", "Removes a label.", row());
    unlabel["parameters"] = names();
    [
        ("/v1/prompts", json!({"get": list})),
        ("/v1/prompts/{name}", json!({"get": get, "put": put})),
        ("/v1/prompts/{name}/render", json!({"post": render})),
        ("/v1/prompts/{name}/labels/{label}", json!({"put": label, "delete": unlabel})),
    ]
}

fn prompt(with_text: bool) -> JsonValue {
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

fn version() -> JsonValue {
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
