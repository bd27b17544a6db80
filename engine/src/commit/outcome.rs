//! The stored form of a result in the log. Most results are rows that repeat what the caller has just
//! sent: storing both would double the log. So a long text of the result that repeats an argument is
//! stored as a mark, and restored from the event's own arguments when a retry needs the result.
//!
//! ```text
//! arguments  {"arguments":{"order":"…long…"},"call_id":"c1", …}
//! result     {"call_id":"c1","arguments":"{\"order\":\"…long…\"}","status":"pending", …}
//! outcome    {"call_id":"c1","arguments":{"$argument":"json"},"status":"pending", …}
//! ```
//!
//! `"text"` stands for the argument itself, `"json"` for its canonical JSON as a text. A result that
//! contains such a mark itself is stored as `{"$result":"<its text>"}`, so decoding is exact.
//!
//! The outcome of a refused call whose event is kept is the refusal:
//! `{"$refused":{"code":…,"detail":…,"hint":…}}`.

use abide_schema::{Code, Refusal};
use serde_json::{Value as JsonValue, json};

const MARK: &str = "{\"$argument\":";
const TEXT_MARK: &str = "{\"$argument\":\"text\"}";
const JSON_MARK: &str = "{\"$argument\":\"json\"}";
const WRAPPED: &str = "{\"$result\":";
const REFUSED: &str = "{\"$refused\":";

/// Shorter texts are stored unchanged: marks only serve to reduce the log's size.
const LONG: usize = 64;

/// A member of an object as its text, `"name":value`, and the same with a mark for the value.
#[derive(Debug)]
struct EchoedMember {
    text: String,
    marked: String,
    /// Bytes of `"name":`.
    name_bytes: usize,
}

impl EchoedMember {
    fn new(name: &str, value: &str, mark: &str) -> EchoedMember {
        let (text, marked) = (format!("{name}:{value}"), format!("{name}:{mark}"));
        EchoedMember { text, marked, name_bytes: name.len() + 1 }
    }

    /// The position of the member in a text. Searches for the short name first: preparing a search for a
    /// long value would cost more than the search.
    fn find(&self, text: &str) -> Option<usize> {
        let name = &self.text[..self.name_bytes];
        text.match_indices(name).map(|(at, _)| at).find(|at| text[*at..].starts_with(&self.text))
    }
}

/// The arguments of one call that its result may repeat.
#[derive(Debug)]
pub(crate) struct EchoedArguments {
    members: Vec<EchoedMember>,
}

impl EchoedArguments {
    /// The candidates among these arguments: each long one, in the form of a text column and
    /// of a JSON column.
    pub(crate) fn of(arguments: &JsonValue) -> EchoedArguments {
        let mut members = Vec::new();
        for (name, value) in arguments.as_object().into_iter().flatten() {
            let canonical = abide_schema::canonical::to_text(value);
            if canonical.len() < LONG {
                continue;
            }
            let name = JsonValue::from(name.as_str()).to_string();
            let as_json_column = JsonValue::from(canonical.as_str()).to_string();
            members.push(EchoedMember::new(&name, &as_json_column, JSON_MARK));
            if value.is_string() {
                members.push(EchoedMember::new(&name, &canonical, TEXT_MARK));
            }
        }
        EchoedArguments { members }
    }

    /// The stored form of a result.
    pub(crate) fn compact(&self, result: &str) -> String {
        if result.contains(MARK) || result.starts_with(WRAPPED) || result.starts_with(REFUSED) {
            return format!("{WRAPPED}{}}}", JsonValue::from(result));
        }
        let mut outcome = result.to_owned();
        for member in &self.members {
            // Quotes are escaped inside JSON texts, so a match is a member, not a mention.
            if let Some(at) = member.find(&outcome) {
                outcome.replace_range(at..at + member.text.len(), &member.marked);
            }
        }
        outcome
    }
}

/// The stored form of a refusal.
pub(crate) fn refused(refusal: &Refusal) -> String {
    let Refusal { code, detail, hint, .. } = refusal;
    let mut said = json!({"code": code.as_str(), "detail": detail});
    if let Some(hint) = hint {
        said["hint"] = hint.as_str().into();
    }
    format!("{REFUSED}{said}}}")
}

/// The refusal in an event's outcome, if it is one.
pub(crate) fn refusal_in(outcome: &str) -> Option<Refusal> {
    if !outcome.starts_with(REFUSED) {
        return None;
    }
    let said: JsonValue = serde_json::from_str(outcome).ok()?;
    let said = &said["$refused"];
    let text = |name: &str| said[name].as_str().map(str::to_owned);
    let code = Code::parse(&text("code")?)?;
    Some(Refusal { hint: text("hint"), ..Refusal::new(code, text("detail")?) })
}

/// Restores the result of an event from its stored form.
pub(crate) fn expand(outcome: &str, arguments: &str) -> String {
    if outcome.starts_with(WRAPPED) {
        let wrapped: JsonValue = serde_json::from_str(outcome).unwrap_or_default();
        return wrapped["$result"].as_str().unwrap_or("null").to_owned();
    }
    let mut result = outcome.to_owned();
    if result.contains(MARK) {
        let arguments = serde_json::from_str(arguments).unwrap_or_default();
        for member in EchoedArguments::of(&arguments).members {
            result = result.replacen(&member.marked, &member.text, 1);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks the stored form of a result (long runs of x shown as `~`), and that it decodes to the same.
    fn check(arguments: &JsonValue, result: &JsonValue, kept: &str) {
        let result = result.to_string();
        let outcome = EchoedArguments::of(arguments).compact(&result);
        assert_eq!(outcome.replace(&long(), "~"), kept);
        assert_eq!(expand(&outcome, &arguments.to_string()), result);
    }

    fn long() -> String {
        "x".repeat(100)
    }

    #[test]
    fn repeated_long_texts_are_stored_once() {
        let (text, object) = (long(), json!({"order": long()}));
        let kept_text = r#"{"a":{"$argument":"text"},"b":1}"#;
        let kept_json = r#"{"a":{"$argument":"json"},"b":1}"#;
        check(&json!({"a": text}), &json!({"a": text, "b": 1}), kept_text);
        check(&json!({"a": object}), &json!({"a": object.to_string(), "b": 1}), kept_json);
        check(&json!({"a": text}), &json!({"a": json!(text).to_string(), "b": 1}), kept_json);
    }

    #[test]
    fn other_results_are_stored_unchanged() {
        check(&json!({"a": "short"}), &json!({"a": "short"}), r#"{"a":"short"}"#);
        check(&json!({"a": long()}), &json!({"b": long()}), r#"{"b":"~"}"#);
        check(&json!({}), &json!(null), "null");
    }

    #[test]
    fn results_with_marks_round_trip() {
        let sent = json!({"a": long()});
        let marked = r#"{"$result":"{\"a\":{\"$argument\":\"text\"}}"}"#;
        check(&sent, &json!({"a": {"$argument": "text"}}), marked);
        check(&sent, &json!({"$result": "null"}), r#"{"$result":"{\"$result\":\"null\"}"}"#);
        let refused = r#"{"$result":"{\"$refused\":{}}"}"#;
        check(&sent, &json!({"$refused": {}}), refused);
        let mention = format!("\"a\":\"{}\"", long());
        check(&sent, &json!({"b": mention}), r#"{"b":"\"a\":\"~\""}"#);
    }

    #[test]
    fn refusals_round_trip() {
        let refusal = Refusal::new(Code::LeaseLost, "the lease of \"c1\" is lost");
        for refusal in [refusal.clone().hint("see lost_leases"), refusal] {
            assert_eq!(refusal_in(&refused(&refusal)), Some(refusal));
        }
        assert_eq!(refusal_in(r#"{"call_id":"c1"}"#), None);
    }
}
