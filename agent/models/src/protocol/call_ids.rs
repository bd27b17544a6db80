//! The ids of calls in a request. Ids are kept as the model wrote them, but a provider refuses a conversation with an id that is
//! empty, that two calls have, that is too long or that has other characters than its own ids: then no later request of the session is
//! answered, after its tools have run. So a request has other ids where they are needed. The same conversation always gets the same.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::{ModelMessage, ModelRequest};

/// What a provider accepts as the id of a call.
pub(super) struct IdRules {
    /// Maximum number of characters.
    length_max: usize,
    is_allowed: fn(char) -> bool,
    /// Whether a call may have no id.
    is_optional: bool,
}

impl IdRules {
    pub(super) const OPENAI: Self = Self::required(40, is_visible);
    /// Kimi expects its own ids like `functions.pay:0`.
    pub(super) const OPENAI_COMPATIBLE: Self = Self::required(256, is_visible);
    pub(super) const OPENAI_RESPONSES: Self = Self::required(64, is_visible);
    pub(super) const ANTHROPIC: Self = Self::required(64, is_word);
    pub(super) const GEMINI: Self =
        Self { length_max: 256, is_allowed: is_visible, is_optional: true };

    const fn required(length_max: usize, is_allowed: fn(char) -> bool) -> Self {
        Self { length_max, is_allowed, is_optional: false }
    }
}

fn is_visible(char: char) -> bool {
    !char.is_control()
}

fn is_word(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-')
}

/// Returns the messages of a request with ids of calls that the provider accepts.
pub(super) fn with_accepted_ids<'a>(
    request: &'a ModelRequest,
    rules: &IdRules,
) -> Cow<'a, [ModelMessage]> {
    let mut messages = Cow::Borrowed(request.messages.as_slice());
    let mut used = BTreeMap::new();
    // The ids of the last message with calls that have no result yet, each with the one that is sent.
    let mut pending: Vec<(String, String)> = Vec::new();
    for at in 0..request.messages.len() {
        match &request.messages[at] {
            ModelMessage::Assistant { calls, .. } if !calls.is_empty() => {
                pending = calls
                    .iter()
                    .map(|call| (call.id.clone(), rules.unique(&call.id, &mut used)))
                    .collect();
                if pending.iter().any(|(id, sent)| id != sent)
                    && let ModelMessage::Assistant { calls, .. } = &mut messages.to_mut()[at]
                {
                    for (call, (_, sent)) in calls.iter_mut().zip(&pending) {
                        call.id.clone_from(sent);
                    }
                }
            }
            ModelMessage::Tool { call_id, .. } => {
                let sent = match pending.iter().position(|(id, _)| id == call_id) {
                    Some(found) => pending.remove(found).1,
                    None => rules.fitted(call_id).into_owned(),
                };
                if sent != *call_id
                    && let ModelMessage::Tool { call_id, .. } = &mut messages.to_mut()[at]
                {
                    *call_id = sent;
                }
            }
            _ => {}
        }
    }
    messages
}

impl IdRules {
    /// Returns the id, or one like it that is accepted and not used. `used` has the ids that were sent, each with the number of
    /// the last one that is like it.
    fn unique(&self, id: &str, used: &mut BTreeMap<String, usize>) -> String {
        if id.is_empty() && self.is_optional {
            return String::new();
        }
        let fitted = self.fitted(id);
        let mut number = used.get(fitted.as_ref()).copied().unwrap_or_default();
        let sent = loop {
            number += 1;
            let sent = self.numbered(&fitted, number);
            if !used.contains_key(&sent) {
                break sent;
            }
        };
        used.insert(fitted.into_owned(), number);
        used.entry(sent.clone()).or_insert(1);
        sent
    }

    /// Returns an accepted id with a number; the first one has none.
    fn numbered(&self, id: &str, number: usize) -> String {
        if number == 1 {
            return id.to_owned();
        }
        let suffix = format!("_{number}");
        let kept = self.length_max - suffix.len();
        id.chars().take(kept).chain(suffix.chars()).collect()
    }

    /// Returns the id with what the provider accepts of it.
    fn fitted<'a>(&self, id: &'a str) -> Cow<'a, str> {
        if id.is_empty() {
            return Cow::Borrowed(if self.is_optional { "" } else { "call" });
        }
        if id.chars().all(self.is_allowed) && id.chars().count() <= self.length_max {
            return Cow::Borrowed(id);
        }
        let accepted = id.chars().map(|char| if (self.is_allowed)(char) { char } else { '_' });
        Cow::Owned(accepted.take(self.length_max).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelCall;
    use expect_test::{Expect, expect};

    fn shown(id: &str) -> String {
        if id.is_empty() { "(none)".to_owned() } else { id.to_owned() }
    }

    /// Returns the ids of a conversation, one line per message. Each list of ids is an answer with calls, followed by their results.
    fn sent(rules: &IdRules, answers: &[&[&str]]) -> String {
        let mut messages = Vec::new();
        for ids in answers {
            let call = |id: &&str| ModelCall { id: (*id).to_owned(), ..ModelCall::default() };
            messages.push(ModelMessage::Assistant {
                text: String::new(),
                reasoning: None,
                calls: ids.iter().map(call).collect(),
                carry: None,
            });
            messages.extend(ids.iter().map(|id| ModelMessage::Tool {
                call_id: (*id).to_owned(),
                name: "pay".to_owned(),
                content: String::new(),
                is_error: false,
            }));
        }
        let request = ModelRequest { messages, ..ModelRequest::default() };
        let mut lines = Vec::new();
        let mut results = Vec::new();
        for message in with_accepted_ids(&request, rules).iter() {
            match message {
                ModelMessage::Assistant { calls, .. } => {
                    let ids: Vec<String> = calls.iter().map(|call| shown(&call.id)).collect();
                    lines.push(ids.join(" "));
                }
                ModelMessage::Tool { call_id, .. } => results.push(shown(call_id)),
                _ => {}
            }
        }
        assert_eq!(lines.join(" "), results.join(" "), "each result has the id of its call");
        lines.join("\n")
    }

    fn check(rules: &IdRules, expected: Expect) {
        let long = "c".repeat(70);
        let answers: [&[&str]; 5] = [
            &["tu_1", "tu_1"],
            &["", "functions.pay:0", "functions.pay.0"],
            &["tu_1", "tu_1_2", "é"],
            &[&long, &long],
            &["", ""],
        ];
        expected.assert_eq(&sent(rules, &answers));
    }

    /// The class: an id that the provider refuses ended the session, after its tools had run.
    #[test]
    fn ids_are_unique_and_accepted() {
        check(
            &IdRules::ANTHROPIC,
            expect![[r#"
            tu_1 tu_1_2
            call functions_pay_0 functions_pay_0_2
            tu_1_3 tu_1_2_2 _
            cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc_2
            call_2 call_3"#]],
        );
        check(
            &IdRules::OPENAI,
            expect![[r#"
            tu_1 tu_1_2
            call functions.pay:0 functions.pay.0
            tu_1_3 tu_1_2_2 é
            cccccccccccccccccccccccccccccccccccccccc cccccccccccccccccccccccccccccccccccccc_2
            call_2 call_3"#]],
        );
        check(
            &IdRules::OPENAI_COMPATIBLE,
            expect![[r#"
            tu_1 tu_1_2
            call functions.pay:0 functions.pay.0
            tu_1_3 tu_1_2_2 é
            cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc_2
            call_2 call_3"#]],
        );
        check(
            &IdRules::GEMINI,
            expect![[r#"
            tu_1 tu_1_2
            (none) functions.pay:0 functions.pay.0
            tu_1_3 tu_1_2_2 é
            cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc_2
            (none) (none)"#]],
        );
    }
}
