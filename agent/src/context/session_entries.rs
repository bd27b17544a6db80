//! The messages of a session that a driver has read, without the text that request guardrails have denied. Everything that
//! leaves for a model, a program or a remote agent is built from these messages, so denied text is in none of it.

use std::ops::Deref;

use crate::context::entry::{SessionEntry, is_answer, is_of_others};

/// The messages, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionEntries {
    all: Vec<SessionEntry>,
    /// How many of them precede the messages that were read without a gap.
    kept: usize,
}

impl SessionEntries {
    /// Begins with the messages that a summary keeps. They were allowed, and a denial that follows is not about them.
    pub(crate) fn with_kept(kept: Vec<SessionEntry>) -> SessionEntries {
        SessionEntries { kept: kept.len(), all: kept }
    }

    /// Adds the next messages. The message of a rule removes the text of all messages since the answer before.
    pub(crate) fn extend(&mut self, new: impl IntoIterator<Item = SessionEntry>) {
        for entry in new {
            if is_answer(&entry) && entry.assistant().is_some_and(|answer| answer.denies_request) {
                let before = self.all[self.kept..].iter_mut().rev();
                let since = before.take_while(|entry| !is_answer(entry));
                since.filter(|entry| is_of_others(entry)).for_each(SessionEntry::deny);
            }
            self.all.push(entry);
        }
    }

    /// Forgets the messages that a summary stands for.
    pub(crate) fn retain(&mut self, is_shown: impl Fn(i64) -> bool) {
        let kept = self.all[..self.kept].iter().filter(|entry| is_shown(entry.id)).count();
        self.all.retain(|entry| is_shown(entry.id));
        self.kept = kept;
    }
}

impl Deref for SessionEntries {
    type Target = [SessionEntry];

    fn deref(&self) -> &[SessionEntry] {
        &self.all
    }
}

#[cfg(test)]
mod tests;
