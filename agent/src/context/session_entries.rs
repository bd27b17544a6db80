//! The messages of a session that a driver has read, without the text that request guardrails have denied. Everything that
//! leaves for a model, a program or a remote agent is built from these messages, so denied text is in none of it.

use std::ops::Deref;

use abide_client::rows::Run;

use crate::context::entry::{
    RequestedCall, SessionEntry, UndeliveredResult, is_answer, is_of_others, is_result, last_answer,
};

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

    /// Returns the calls of answers whose final outcome neither a message nor [`SessionEntries::set_undelivered`] has,
    /// each with the position of its answer. The last answer of the run is omitted: its calls go on.
    pub(crate) fn undelivered(&self, run: &Run) -> Vec<(usize, RequestedCall)> {
        let current = last_answer(run, &self.all).map(|(at, _)| at);
        let mut open: Vec<(usize, &RequestedCall)> = Vec::new();
        let mut all: Vec<(usize, &RequestedCall)> = Vec::new();
        for (at, entry) in self.all.iter().enumerate() {
            if is_result(entry) {
                let answered = entry.tool().map(|result| result.call_id.as_str());
                open.retain(|(_, call)| Some(call.call_id.as_str()) != answered);
            } else if is_answer(entry) {
                all.append(&mut open);
                let calls = entry.assistant().map_or(&[][..], |answer| &answer.calls);
                open.extend(calls.iter().map(|call| (at, call)));
            }
        }
        all.append(&mut open);
        let is_known = |at: usize, call: &RequestedCall| {
            self.all[at].undelivered(&call.call_id).is_some_and(|known| known.is_final)
        };
        all.retain(|(at, call)| Some(*at) != current && !is_known(*at, call));
        all.into_iter().map(|(at, call)| (at, call.clone())).collect()
    }

    /// Sets the outcome of a call of the answer at a position.
    pub(crate) fn set_undelivered(&mut self, at: usize, result: UndeliveredResult) {
        self.all[at].set_undelivered(result);
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
