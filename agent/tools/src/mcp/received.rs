//! Messages of a server, in a form that the SDK can decode.
//!
//! The SDK drops a message with one value that it does not know, and its request then waits until its timeout, although the
//! server has answered. Here such a response becomes one that ends its request at once: with what can be read of it, and
//! with an error that says what cannot.

use std::borrow::Cow;

use abide_json_integers as integers;
use rmcp::model::{
    CallToolResult, ContentBlock, CustomResult, ErrorCode, JsonRpcMessage, ServerJsonRpcMessage,
    ServerResult, Tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The code of our own error for a response that cannot be read: whether its call took effect is unknown. Servers have no reason to
/// use it, and with it they only say the same.
pub(super) const UNREADABLE: ErrorCode = ErrorCode(i32::MIN);

/// Returns the message as the SDK can decode it. A message that answers no request is returned as it is.
pub(super) fn decodable(message: &str) -> Cow<'_, str> {
    let text = integers::readable(message.as_bytes());
    if is_decodable(&text) {
        return text;
    }
    match serde_json::from_str::<Map<String, Value>>(&text) {
        Ok(mut members) => {
            let is_response = !members.contains_key("method");
            let id = members.get("id").filter(|id| !id.is_null()).cloned();
            let Some(id) = id.filter(|_| is_response) else { return text };
            complete(&mut members);
            let completed = Value::Object(members.clone()).to_string();
            if is_decodable(&completed) {
                return Cow::Owned(completed);
            }
            let result = members.remove("result");
            let readable = result.and_then(|result| readable(&id, result));
            Cow::Owned(readable.unwrap_or_else(|| unreadable(&id, "it is no valid message")))
        }
        Err(why) => match id_of_response(&text) {
            Some(id) => Cow::Owned(unreadable(&id, &why.to_string())),
            None => {
                tracing::warn!(
                    name: "mcp_line_ignored",
                    %why,
                    "a line of an MCP server is no message: it is ignored"
                );
                text
            }
        },
    }
}

/// Completes a response whose form other versions of JSON-RPC and lenient servers have: without `jsonrpc`, or with the member of the
/// other kind of response as `null`. The SDK decodes neither, but both say all that they have to.
fn complete(response: &mut Map<String, Value>) {
    response.insert("jsonrpc".to_owned(), json!("2.0"));
    for (absent, present) in [("error", "result"), ("result", "error")] {
        if response.get(absent).is_some_and(Value::is_null) && response.contains_key(present) {
            response.remove(absent);
        }
    }
}

/// Returns `true` if the SDK decodes the message as what it is. A result that it does not know becomes one of an
/// extension.
fn is_decodable(text: &str) -> bool {
    match serde_json::from_str::<ServerJsonRpcMessage>(text) {
        Ok(JsonRpcMessage::Response(response)) => match response.result {
            ServerResult::CustomResult(CustomResult(result)) => {
                result.get("content").is_none() && result.get("tools").is_none()
            }
            _ => true,
        },
        other => other.is_ok(),
    }
}

fn fits<T: DeserializeOwned>(value: &Value) -> bool {
    serde_json::from_value::<T>(value.clone()).is_ok()
}

/// Returns a response with an error, for a request whose response cannot be read.
fn unreadable(id: &Value, why: &str) -> String {
    let message = format!("the response cannot be read: {why}");
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": UNREADABLE, "message": message}})
        .to_string()
}

/// Returns a response with the parts of a result that can be read; `None` if there are none.
fn readable(id: &Value, mut result: Value) -> Option<String> {
    if let Some(tools) = result["tools"].as_array_mut() {
        let count = tools.len();
        tools.retain(fits::<Tool>);
        tracing::warn!(
            name: "mcp_tools_dropped",
            dropped = count - tools.len(),
            "tools of an MCP server cannot be read"
        );
    } else {
        result = readable_content(&result)?;
    }
    let message = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    is_decodable(&message).then_some(message)
}

/// Returns the result of a tool as an error with the content that can be read.
fn readable_content(result: &Value) -> Option<Value> {
    let mut content = Vec::new();
    let mut unknown = Vec::new();
    match &result["content"] {
        Value::String(text) => {
            content.push(json!({"type": "text", "text": text}));
            unknown.push("its content is no list".to_owned());
        }
        Value::Array(blocks) => {
            for (index, block) in blocks.iter().enumerate() {
                if fits::<ContentBlock>(block) {
                    content.push(block.clone());
                    continue;
                }
                let kind = block["type"].as_str().unwrap_or("without a type");
                unknown.push(format!("content {index} ({kind})"));
                content.extend(
                    block["text"].as_str().map(|text| json!({"type": "text", "text": text})),
                );
            }
        }
        _ => return None,
    }
    let why = if unknown.is_empty() {
        "its other members are invalid".to_owned()
    } else {
        unknown.join(", ")
    };
    let note = format!("the tool ran, but a part of its result cannot be read: {why}");
    content.insert(0, json!({"type": "text", "text": note}));
    let mut readable = json!({"content": content, "isError": true, "resultType": "complete"});
    if let Some(structured) = result.get("structuredContent").filter(|value| value.is_object()) {
        readable["structuredContent"] = structured.clone();
    }
    fits::<CallToolResult>(&readable).then_some(readable)
}

/// Returns the id of a response that is not valid JSON, such as one with `NaN`; `None` for requests and other text.
fn id_of_response(text: &str) -> Option<Value> {
    let mut depth = 0_usize;
    let mut id = None;
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        match character {
            '"' => {
                let end = end_of_string(text, at)?;
                let name = &text[at..end];
                at = end;
                let value = text[at..].trim_start().strip_prefix(':').map(str::trim_start);
                match value.filter(|_| depth == 1) {
                    Some(_) if name == "\"method\"" => return None,
                    Some(value) if name == "\"id\"" => {
                        let mut values = serde_json::Deserializer::from_str(value).into_iter();
                        id = values.next().and_then(Result::ok).filter(|id: &Value| !id.is_null());
                    }
                    _ => {}
                }
                continue;
            }
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += character.len_utf8();
    }
    id.filter(|id| id.is_number() || id.is_string())
}

/// Returns the position after a string that begins at a quotation mark.
fn end_of_string(text: &str, start: usize) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start + 1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(message: &str, expected: Expect) {
        let text = decodable(message);
        expected.assert_eq(&text);
    }

    /// Class: one undecodable value costs the message. The call waited until its timeout, and a person had to settle it.
    #[test]
    fn a_response_with_a_value_that_is_not_known_ends_its_request() {
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a\ud800b"}]}}"#,
            expect![[
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a\ufffdb"}]}}"#
            ]],
        );
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a"},{"type":"hologram","text":"b"}]}}"#,
            expect![[
                r#"{"id":1,"jsonrpc":"2.0","result":{"content":[{"text":"the tool ran, but a part of its result cannot be read: content 1 (hologram)","type":"text"},{"text":"a","type":"text"},{"text":"b","type":"text"}],"isError":true,"resultType":"complete"}}"#
            ]],
        );
        check(
            r#"{"jsonrpc":"2.0","id":"x","result":{"content":"words"}}"#,
            expect![[
                r#"{"id":"x","jsonrpc":"2.0","result":{"content":[{"text":"the tool ran, but a part of its result cannot be read: its content is no list","type":"text"},{"text":"words","type":"text"}],"isError":true,"resultType":"complete"}}"#
            ]],
        );
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":7}"#,
            expect![[r#"{"jsonrpc":"2.0","id":1,"result":7}"#]],
        );
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","inputSchema":{}},{"name":7}]}}"#,
            expect![[
                r#"{"id":1,"jsonrpc":"2.0","result":{"tools":[{"inputSchema":{},"name":"a"}]}}"#
            ]],
        );
        check(
            r#"{"jsonrpc":"2.0","result":{"content":[],"x":NaN,"id":2},"id":1}"#,
            expect![[
                r#"{"error":{"code":-2147483648,"message":"the response cannot be read: expected value at line 1 column 45"},"id":1,"jsonrpc":"2.0"}"#
            ]],
        );
    }

    /// Class: a valid result in a lenient form. It was recorded as a failure, so that the model repeated a payment.
    #[test]
    fn a_result_in_a_lenient_form_is_a_result() {
        let complete = expect![[
            r#"{"id":1,"jsonrpc":"2.0","result":{"content":[{"text":"paid","type":"text"}]}}"#
        ]];
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"paid"}]},"error":null}"#,
            r#"{"id":1,"result":{"content":[{"type":"text","text":"paid"}]}}"#,
            r#"{"jsonrpc":"1.0","id":1,"result":{"content":[{"type":"text","text":"paid"}]},"error":null}"#,
            r#"{"jsonrpc":2,"id":1,"result":{"content":[{"type":"text","text":"paid"}]}}"#,
        ] {
            complete.assert_eq(&decodable(message));
        }
        check(
            r#"{"id":1,"result":null,"error":{"code":-32602,"message":"no such order"}}"#,
            expect![[
                r#"{"error":{"code":-32602,"message":"no such order"},"id":1,"jsonrpc":"2.0"}"#
            ]],
        );
        check(
            r#"{"id":1,"result":null,"error":null}"#,
            expect![[r#"{"id":1,"jsonrpc":"2.0","result":null}"#]],
        );
    }

    /// Ids of requests of the server are not those of requests to it.
    #[test]
    fn requests_and_other_text_stay_as_they_are() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"sampling/odd","params":{"x":NaN}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","result":{"id":1,"x":NaN}}"#,
            r#"{"jsonrpc":"2.0","id":null,"result":{}}"#,
            "Listening on port 8080",
            r#"{"id": 1, "text": "no end"#,
            "",
        ] {
            assert_eq!(decodable(text), text);
        }
    }
}
