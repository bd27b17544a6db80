//! A message of a client: what it says to the agent, and how it decides on calls that wait for an approval.

use abide_schema::limits::{A2A_MESSAGE_ID_BYTES, A2A_PARTS};
use abide_schema::{Code, Json, Refusal};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value as JsonValue, json};
use sha2::{Digest as _, Sha256};

use super::error::{A2aError, A2aResult, Kind};
use super::params::{field, required_text, text_field};
use crate::decision::{self, Decision};

/// A message of a client.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) task_id: Option<String>,
    pub(super) context_id: Option<String>,
    /// The message in the form of the protocol, without the ids of its task and context.
    json: JsonValue,
    /// A digest of the message and the task that it names.
    pub(super) digest: String,
}

impl Message {
    /// Reads a message.
    pub(super) fn parse(message: &JsonValue) -> A2aResult<Message> {
        if !message.is_object() {
            return Err(A2aError::invalid("message is missing"));
        }
        let id = required_text(message, "messageId")?.to_owned();
        if id.len() > A2A_MESSAGE_ID_BYTES {
            let detail = format!("messageId has more than {A2A_MESSAGE_ID_BYTES} bytes");
            return Err(Refusal::new(Code::LimitExceeded, detail).into());
        }
        match field(message, "role") {
            // `ProtoJSON` accepts the number of a name, too.
            role if role == "ROLE_USER" || *role == 1 => {}
            _ => return Err(A2aError::invalid("the role of the message must be ROLE_USER")),
        }
        let parts = field(message, "parts").as_array().map(Vec::as_slice).unwrap_or_default();
        if parts.is_empty() {
            return Err(A2aError::invalid("the message has no parts"));
        }
        if parts.len() > A2A_PARTS {
            let detail = format!("a message has at most {A2A_PARTS} parts");
            return Err(Refusal::new(Code::LimitExceeded, detail).into());
        }
        let parts: Vec<JsonValue> = parts.iter().map(read_part).collect::<Result<_, _>>()?;
        let mut json = json!({"messageId": id, "role": "ROLE_USER", "parts": parts});
        for name in ["metadata", "extensions", "referenceTaskIds"] {
            match field(message, name) {
                JsonValue::Null => {}
                value => json[name] = value.clone(),
            }
        }
        let [task_id, context_id] = ["taskId", "contextId"].map(|name| text_field(message, name));
        let task_id = task_id?.map(str::to_owned);
        let context_id = context_id?.map(str::to_owned);
        let all = json!([task_id, json]);
        let digest = hex::encode(Sha256::digest(Json::from(all).as_str().as_bytes()));
        Ok(Message { id, task_id, context_id, json, digest })
    }

    /// Returns the message as the history of a task has it.
    pub(super) fn to_json(&self) -> JsonValue {
        self.json.clone()
    }

    /// Returns the text for the agent. A file is only named: it is never fetched.
    pub(super) fn prompt(&self) -> A2aResult<String> {
        let texts = self.parts().iter().map(|part| {
            if let Some(text) = part["text"].as_str() {
                return Ok(text.to_owned());
            }
            if let Some(url) = part["url"].as_str() {
                let name = part["filename"].as_str().unwrap_or("file");
                return Ok(format!("[{name}: {url}]"));
            }
            match part["raw"].as_str() {
                Some(raw) => decode_text(raw),
                None => Ok(part["data"].to_string()),
            }
        });
        let texts: Vec<String> = texts.collect::<A2aResult<_>>()?;
        Ok(texts.join("\n"))
    }

    /// Returns the decisions on these calls. A part with data names them, or decides on all of them: `{"approve":
    /// true}`. The texts `approve` and `yes` approve all, `reject` and `no` reject all. Any other text rejects them,
    /// and the agent gets it as the reason: nothing but a clear approval approves.
    pub(super) fn decisions(&self, pending: &[String]) -> A2aResult<Vec<Decision>> {
        let mut objects = self.parts().iter().map(|part| &part["data"]).filter(|it| it.is_object());
        let Some(data) = objects.next() else {
            let said = self.prompt()?;
            let (approve, comment) = match parse_decision(&said) {
                Some(approve) => (approve, None),
                None => (false, Some(said)),
            };
            return Ok(pending
                .iter()
                .map(|id| plain_decision(id, approve, comment.clone()))
                .collect());
        };
        if objects.next().is_some() {
            return Err(A2aError::invalid(
                "the message has several parts with data, which can decide differently",
            ));
        }
        let members = data.as_object().into_iter().flatten();
        decision::check_members("data", members, &DATA_MEMBERS)?;
        if let Some(decisions) = data["decisions"].as_array() {
            let others: Vec<&str> =
                DATA_MEMBERS[1..].iter().copied().filter(|name| !data[*name].is_null()).collect();
            if !others.is_empty() {
                let others = others.join(", ");
                return Err(A2aError::invalid(format!("data has both decisions and {others}")));
            }
            return decisions.iter().map(read_decision).collect();
        }
        let Some(approve) = data["approve"].as_bool() else {
            let message = r#"data has neither "approve": true or false nor "decisions""#;
            return Err(A2aError::invalid(message));
        };
        let texts = self.parts().iter().filter_map(|part| part["text"].as_str());
        if texts.filter_map(parse_decision).any(|said| said != approve) {
            return Err(A2aError::invalid(
                "the text and the data of the message decide differently",
            ));
        }
        let comment = data["comment"].as_str().map(str::to_owned);
        let (answer, approved_arguments) = read_changes(data)?;
        match pending {
            [id] => Ok(vec![Decision {
                answer,
                approved_arguments,
                ..plain_decision(id, approve, comment)
            }]),
            _ if answer.is_some() || approved_arguments.is_some() => {
                let message =
                    r#"several calls wait: name the call, with "decisions": [{"callId": …}]"#;
                Err(A2aError::invalid(message))
            }
            _ => {
                Ok(pending.iter().map(|id| plain_decision(id, approve, comment.clone())).collect())
            }
        }
    }

    fn parts(&self) -> &[JsonValue] {
        self.json["parts"].as_array().map(Vec::as_slice).unwrap_or_default()
    }
}

/// The members of data that decides. Without `decisions`, it decides on all calls that wait.
const DATA_MEMBERS: [&str; 6] =
    ["decisions", "approve", "comment", "answer", APPROVED_ARGUMENTS, "approved_arguments"];

/// The members of an entry of `decisions`.
const DECISION_MEMBERS: [&str; 7] =
    ["callId", "call_id", "approve", "comment", "answer", APPROVED_ARGUMENTS, "approved_arguments"];

/// The member with the arguments that the approver has changed.
const APPROVED_ARGUMENTS: &str = "approvedArguments";

/// What a text decides on its own; `None` if it only explains.
fn parse_decision(text: &str) -> Option<bool> {
    match text.trim().to_lowercase().as_str() {
        "approve" | "yes" => Some(true),
        "reject" | "no" => Some(false),
        _ => None,
    }
}

/// Returns a decision without an answer and without changed arguments.
fn plain_decision(call_id: &str, approve: bool, comment: Option<String>) -> Decision {
    Decision {
        call_id: call_id.to_owned(),
        approve,
        comment,
        answer: None,
        approved_arguments: None,
    }
}

/// Returns the answer to a question, and the arguments that the approver has changed.
fn read_changes(data: &JsonValue) -> A2aResult<(Option<JsonValue>, Option<JsonValue>)> {
    let answer = data.get("answer").filter(|answer| !answer.is_null());
    let value = field(data, APPROVED_ARGUMENTS);
    let arguments = decision::approved_arguments(APPROVED_ARGUMENTS, value, answer)?;
    Ok((answer.cloned(), arguments))
}

fn read_decision(data: &JsonValue) -> A2aResult<Decision> {
    let members = data.as_object().into_iter().flatten();
    decision::check_members("a decision", members, &DECISION_MEMBERS)?;
    let approve = data["approve"].as_bool();
    let approve = approve.ok_or_else(|| A2aError::invalid("a decision needs approve"))?;
    let comment = data["comment"].as_str().map(str::to_owned);
    let (answer, approved_arguments) = read_changes(data)?;
    let call_id = required_text(data, "callId")?.to_owned();
    Ok(Decision { call_id, approve, comment, answer, approved_arguments })
}

/// Returns a part, with only its known fields.
fn read_part(part: &JsonValue) -> A2aResult<JsonValue> {
    let media_type = text_field(part, "mediaType")?;
    let mut known = json!({});
    let given: Vec<&str> =
        ["text", "raw", "url", "data"].into_iter().filter(|name| !part[*name].is_null()).collect();
    let [kind] = given[..] else {
        return Err(A2aError::invalid("a part must have exactly one of text, raw, url and data"));
    };
    if kind != "data" && !part[kind].is_string() {
        return Err(A2aError::invalid(format!("{kind} of a part must be a string")));
    }
    // A URL is only a text for the agent, whatever it leads to.
    if kind != "url" && !media_type.is_none_or(is_text) {
        let message = format!("the media type {} is not supported", media_type.unwrap_or_default());
        return Err(A2aError::new(Kind::ContentTypeNotSupported, message));
    }
    if kind == "raw" {
        decode_text(part[kind].as_str().unwrap_or_default())?;
    }
    known[kind] = part[kind].clone();
    for name in ["metadata", "filename", "mediaType"] {
        match field(part, name) {
            JsonValue::Null => {}
            value => known[name] = value.clone(),
        }
    }
    Ok(known)
}

/// Returns `true` if an agent can read content of this type.
fn is_text(media_type: &str) -> bool {
    let name = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    name == "text" || name.starts_with("text/") || name == "application/json"
}

fn decode_text(raw: &str) -> A2aResult<String> {
    let bytes = BASE64_STANDARD.decode(raw);
    let bytes = bytes.map_err(|_| A2aError::invalid("raw of a part is not base64"))?;
    String::from_utf8(bytes).map_err(|_| {
        let message = "the bytes of a part are not text in UTF-8";
        A2aError::new(Kind::ContentTypeNotSupported, message)
    })
}
