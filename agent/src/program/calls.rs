//! The calls that a program makes of its own tools, by their ids: how many, which ones have ended, and how long they took.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use abide_definitions::error::NAME_CHARS;

/// A call that has ended, or that was open when its program ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProgramCall {
    pub(crate) tool: String,
    /// `succeeded`, `tool` if it failed, `lost` if its result is unknown.
    pub(crate) outcome: &'static str,
    pub(crate) took: Duration,
}

/// The calls so far.
#[derive(Default)]
pub(crate) struct ProgramCalls {
    /// The ids of all calls: a program may report a call more than once.
    all: BTreeSet<String>,
    open: BTreeMap<String, (String, Instant)>,
    ended: Vec<ProgramCall>,
}

impl ProgramCalls {
    /// A call has begun. Returns whether it is new.
    pub(crate) fn begin(&mut self, id: &str, tool: &str) -> bool {
        let is_new = self.all.insert(id.to_owned());
        if is_new {
            let tool = tool.chars().take(NAME_CHARS).collect();
            self.open.insert(id.to_owned(), (tool, Instant::now()));
        }
        is_new
    }

    /// A call has ended. Returns whether it is new: its program has not reported that it began.
    pub(crate) fn end(&mut self, id: &str, succeeded: bool) -> bool {
        if let Some((tool, since)) = self.open.remove(id) {
            let outcome = if succeeded { "succeeded" } else { "tool" };
            self.ended.push(ProgramCall { tool, outcome, took: since.elapsed() });
        }
        self.all.insert(id.to_owned())
    }

    /// Returns the calls that have ended since the last time.
    pub(crate) fn take_ended(&mut self) -> Vec<ProgramCall> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the calls that have ended, and the open ones, which will not end: the program has ended.
    pub(crate) fn take_all(&mut self) -> Vec<ProgramCall> {
        let open = std::mem::take(&mut self.open).into_values();
        let lost =
            open.map(|(tool, since)| ProgramCall { tool, outcome: "lost", took: since.elapsed() });
        self.ended.extend(lost);
        self.take_ended()
    }
}
