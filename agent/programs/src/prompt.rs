//! The prompt for a program, and its text layout on stdin, which is specified to the byte.

use serde::{Deserialize, Serialize};

/// Instructions and a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prompt {
    /// The system instructions.
    pub system: Option<String>,
    /// The messages in order.
    pub messages: Vec<PromptMessage>,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptMessage {
    /// Who has written it, such as `user`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl PromptMessage {
    /// Creates a message.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> PromptMessage {
        PromptMessage { role: role.into(), content: content.into() }
    }
}

impl Prompt {
    /// Returns a single message of the user.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self { system: None, messages: vec![PromptMessage::new("user", content)] }
    }

    /// Two sections; the first one is omitted if there are no instructions. There is no newline at the end.
    ///
    /// ```text
    /// System instructions:
    /// <the system instructions, as they are>
    ///
    /// Conversation:
    /// user: …
    /// assistant: …
    /// ```
    #[must_use]
    pub fn layout(&self) -> String {
        let turns: Vec<String> = self
            .messages
            .iter()
            .map(|PromptMessage { role, content }| format!("{role}: {content}"))
            .collect();
        let conversation = format!("Conversation:\n{}", turns.join("\n"));
        match self.system.as_deref().filter(|system| !system.trim().is_empty()) {
            Some(system) => format!("System instructions:\n{system}\n\n{conversation}"),
            None => conversation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(system: &str, messages: &[(&str, &str)], expected: &str) {
        let messages = messages.iter().map(|(role, text)| PromptMessage::new(*role, *text));
        let prompt = Prompt { system: Some(system.into()), messages: messages.collect() };
        assert_eq!(prompt.layout(), expected);
    }

    #[test]
    fn the_payload_has_two_sections() {
        check(
            "You are a tutor.\n",
            &[("user", "Explain await"), ("assistant", "It waits."), ("user", "Again")],
            "System instructions:\nYou are a tutor.\n\n\n\
             Conversation:\nuser: Explain await\nassistant: It waits.\nuser: Again",
        );
    }

    #[test]
    fn without_instructions_only_the_conversation_is_sent() {
        check("", &[("user", "Hello")], "Conversation:\nuser: Hello");
        check(" \n", &[("user", "Hello")], "Conversation:\nuser: Hello");
        assert_eq!(Prompt::user("Hello").layout(), "Conversation:\nuser: Hello");
        check("", &[], "Conversation:\n");
    }
}
