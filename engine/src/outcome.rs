//! What the log keeps of a result. Most results are rows, and most of a row is what the caller just
//! sent: keeping both would double the log. So a long text of the result that repeats an argument is
//! kept as a mark, and put back from the event's own arguments when a retry asks for the result.
//!
//! ```text
//! arguments  {"arguments":{"order":"…long…"},"call_id":"c1", …}
//! result     {"call_id":"c1","arguments":"{\"order\":\"…long…\"}","status":"pending", …}
//! outcome    {"call_id":"c1","arguments":{"$argument":"json"},"status":"pending", …}
//! ```
//!
//! `"text"` stands for the argument as it is, `"json"` for its canonical JSON as a text. A result that
//! holds such a mark itself is kept as `{"$result":"<its text>"}`, so reading back is exact.
//!
//! Where a call was refused and its event is kept all the same, the outcome is the refusal:
//! `{"$refused":{"code":…,"detail":…,"hint":…}}`.

use abide_schema::{Code, Refusal};
use serde_json::{Value as JsonValue, json};

const MARK: &str = "{\"$argument\":";
const TEXT_MARK: &str = "{\"$argument\":\"text\"}";
const JSON_MARK: &str = "{\"$argument\":\"json\"}";
const WRAPPED: &str = "{\"$result\":";
const REFUSED: &str = "{\"$refused\":";

/// Shorter texts are kept as they are: marks are for the log's size, not for beauty.
const LONG: usize = 64;

/// A member of an object as its text, `"name":value`, and the same with a mark for the value.
#[derive(Debug)]
struct Member {
    text: String,
    marked: String,
    /// Bytes of `"name":`.
    name_bytes: usize,
}

impl Member {
    fn new(name: &str, value: &str, mark: &str) -> Member {
        let (text, marked) = (format!("{name}:{value}"), format!("{name}:{mark}"));
        Member { text, marked, name_bytes: name.len() + 1 }
    }

    /// Where the member stands in a text. Looks for the short name first: preparing to search for a
    /// long value would cost more than the search.
    fn find(&self, text: &str) -> Option<usize> {
        let name = &self.text[..self.name_bytes];
        text.match_indices(name).map(|(at, _)| at).find(|at| text[*at..].starts_with(&self.text))
    }
}

/// The arguments of one call that its result may repeat.
#[derive(Debug)]
pub(crate) struct Echo {
    members: Vec<Member>,
}

impl Echo {
    /// What may be repeated of these arguments: each long one, as a text column would hold it and as
    /// a JSON column would.
    pub(crate) fn of(arguments: &JsonValue) -> Echo {
        let mut members = Vec::new();
        for (name, value) in arguments.as_object().into_iter().flatten() {
            let canonical = abide_schema::canonical::to_text(value);
            if canonical.len() < LONG {
                continue;
            }
            let name = JsonValue::from(name.as_str()).to_string();
            let as_json_column = JsonValue::from(canonical.as_str()).to_string();
            members.push(Member::new(&name, &as_json_column, JSON_MARK));
            if value.is_string() {
                members.push(Member::new(&name, &canonical, TEXT_MARK));
            }
        }
        Echo { members }
    }

    /// The result as the log keeps it.
    pub(crate) fn compact(&self, result: &str) -> String {
        if result.contains(MARK) || result.starts_with(WRAPPED) || result.starts_with(REFUSED) {
            return format!("{WRAPPED}{}}}", JsonValue::from(result));
        }
        let mut outcome = result.to_owned();
        for member in &self.members {
            // Inside a JSON text quotes are escaped, so what is found is a member, not a mention.
            if let Some(at) = member.find(&outcome) {
                outcome.replace_range(at..at + member.text.len(), &member.marked);
            }
        }
        outcome
    }
}

/// A refusal as the log keeps it.
pub(crate) fn refused(refusal: &Refusal) -> String {
    let Refusal { code, detail, hint, .. } = refusal;
    let mut said = json!({"code": code.as_str(), "detail": detail});
    if let Some(hint) = hint {
        said["hint"] = hint.as_str().into();
    }
    format!("{REFUSED}{said}}}")
}

/// The refusal that an event's outcome is, if it is one.
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

/// The result of an event, from what the log keeps.
pub(crate) fn expand(outcome: &str, arguments: &str) -> String {
    if outcome.starts_with(WRAPPED) {
        let wrapped: JsonValue = serde_json::from_str(outcome).unwrap_or_default();
        return wrapped["$result"].as_str().unwrap_or("null").to_owned();
    }
    let mut result = outcome.to_owned();
    if result.contains(MARK) {
        let arguments = serde_json::from_str(arguments).unwrap_or_default();
        for member in Echo::of(&arguments).members {
            result = result.replacen(&member.marked, &member.text, 1);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks what is kept of a result (long runs of x shown as `~`), and that it reads back.
    fn check(arguments: &JsonValue, result: &JsonValue, kept: &str) {
        let result = result.to_string();
        let outcome = Echo::of(arguments).compact(&result);
        assert_eq!(outcome.replace(&long(), "~"), kept);
        assert_eq!(expand(&outcome, &arguments.to_string()), result);
    }

    fn long() -> String {
        "x".repeat(100)
    }

    #[test]
    fn long_texts_that_were_sent_are_not_kept_twice() {
        let (text, object) = (long(), json!({"order": long()}));
        let kept_text = r#"{"a":{"$argument":"text"},"b":1}"#;
        let kept_json = r#"{"a":{"$argument":"json"},"b":1}"#;
        check(&json!({"a": text}), &json!({"a": text, "b": 1}), kept_text);
        check(&json!({"a": object}), &json!({"a": object.to_string(), "b": 1}), kept_json);
        check(&json!({"a": text}), &json!({"a": json!(text).to_string(), "b": 1}), kept_json);
    }

    #[test]
    fn all_else_is_kept_as_it_is() {
        check(&json!({"a": "short"}), &json!({"a": "short"}), r#"{"a":"short"}"#);
        check(&json!({"a": long()}), &json!({"b": long()}), r#"{"b":"~"}"#);
        check(&json!({}), &json!(null), "null");
    }

    #[test]
    fn a_result_that_looks_like_ours_comes_back_as_it_was() {
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
    fn a_refusal_comes_back_as_it_was() {
        let refusal = Refusal::new(Code::LeaseLost, "the lease of \"c1\" is lost");
        for refusal in [refusal.clone().hint("see lost_leases"), refusal] {
            assert_eq!(refusal_in(&refused(&refusal)), Some(refusal));
        }
        assert_eq!(refusal_in(r#"{"call_id":"c1"}"#), None);
    }
}
