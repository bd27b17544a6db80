//! The tool calls of an answer that is still arriving. All protocols assemble their calls here.
//!
//! A stream sends a call in parts, and many servers leave out or repeat what would identify them: ids, indexes,
//! names. A part that goes to the wrong call makes a tool run with arguments that the model did not write. So parts
//! are assigned by identity, see [`OpenCalls::part`], and arguments that do not fit together are kept as they are:
//! they are not JSON, and the model gets an error instead of a result.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::partial::{self, PathPiece};
use crate::{ModelCall, ModelError};

/// Maximum number of calls in an answer. Each part is compared with all of them.
const CALLS_MAX: usize = 1000;

/// A part of a call, as one frame has it. An empty text is absent.
#[derive(Default)]
pub(super) struct CallPart<'a> {
    /// The id of the call.
    pub(super) id: &'a str,
    /// The id of the item that holds the call, if the protocol has one.
    pub(super) item: &'a str,
    pub(super) index: Option<u64>,
    pub(super) name: &'a str,
    pub(super) arguments: Arguments,
}

/// The arguments in a part of a call.
#[derive(Default)]
pub(super) enum Arguments {
    #[default]
    None,
    /// The next characters.
    Piece(String),
    /// All of them, whatever arrived before.
    Whole(String),
    /// A value at a path.
    At(PathPiece),
}

/// The calls so far, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    calls: Vec<OpenCall>,
    /// A name that came again, without an id, for a call that is complete. If new arguments follow, it was the head of
    /// another call.
    repeated_name: Option<String>,
}

#[derive(Debug, Default)]
struct OpenCall {
    id: String,
    item: String,
    index: Option<u64>,
    name: String,
    /// The text so far.
    arguments: String,
    progress: ObjectProgress,
    /// The value so far, if it arrives by paths.
    value: Option<Value>,
    /// What counts if nothing else arrives.
    initial: String,
}

impl OpenCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Begins a call where the protocol marks the beginning of each.
    pub(super) fn begin(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        if self.calls.len() == CALLS_MAX {
            let why = format!("the answer has more than {CALLS_MAX} tool calls");
            return Err(ModelError::invalid_response(why));
        }
        self.repeated_name = None;
        self.calls.push(OpenCall { index: part.index, ..OpenCall::default() });
        self.calls.last_mut().expect("one was just pushed").add(part)
    }

    /// Begins a call, unless it repeats the beginning of one that has no arguments yet.
    pub(super) fn announce(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        if self.calls.iter().any(|call| call.is_announced_by(&part)) {
            return Ok(());
        }
        self.begin(part)
    }

    /// Begins a call that arrives complete, unless it repeats one with the same id.
    pub(super) fn whole(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        if self.calls.iter().any(|call| call.is_same_as(&part)) {
            return Ok(());
        }
        self.begin(part)
    }

    /// Adds a part. It belongs to the call with its id. Otherwise an id with a name begins a call; another name begins
    /// one, and so does the same name with new arguments after complete ones; a part without a name belongs to the
    /// call with its index if that can grow, and at last to the call that began last.
    pub(super) fn part(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        if part.is_empty() {
            return Ok(());
        }
        match self.place(&part) {
            Place::Call(at) => {
                let is_complete = self.calls[at].progress.is_complete();
                if is_complete && part.is_blank() && !part.has_id() && !part.name.is_empty() {
                    self.repeated_name = Some(part.name.to_owned());
                }
                if is_complete
                    && !part.is_blank()
                    && !part.has_id()
                    && let Some(name) = self.repeated_name.take()
                {
                    return self.begin(CallPart { name: &name, ..part });
                }
                self.calls[at].add(part)
            }
            Place::New => self.begin(part),
            Place::Repetition => Ok(()),
        }
    }

    /// Adds the calls of an event that repeats the whole answer. A call that has arrived before is not added again.
    pub(super) fn repeat(&mut self, parts: Vec<CallPart<'_>>) -> Result<(), ModelError> {
        let mut unmatched: Vec<usize> = (0..self.calls.len()).collect();
        for part in parts {
            let Some(found) = unmatched.iter().position(|at| self.calls[*at].is_repeated_by(&part))
            else {
                self.begin(part)?;
                continue;
            };
            let call = &mut self.calls[unmatched.remove(found)];
            if call.progress.is_complete() {
                call.add(CallPart { arguments: Arguments::None, ..part })?;
            } else {
                call.add(part)?;
            }
        }
        Ok(())
    }

    /// Sets the arguments that count if the call that began last gets no others.
    pub(super) fn set_initial(&mut self, arguments: String) {
        if let Some(last) = self.calls.last_mut() {
            last.initial = arguments;
        }
    }

    /// The provider states that the call with this index, or the one that began last, is complete. If no arguments
    /// came, there are none.
    pub(super) fn end(&mut self, index: Option<u64>) {
        let ended = self.calls.iter_mut().rfind(|call| index.is_none() || call.index == index);
        if let Some(call) = ended.filter(|call| call.initial.is_empty()) {
            call.initial = "{}".to_owned();
        }
    }

    /// Returns the calls. `is_cut`: the answer ends in the middle, so the last call may be a fragment.
    ///
    /// # Errors
    /// A call has no name, so it is unknown what the model wants.
    pub(super) fn finish(&mut self, is_cut: bool) -> Result<Vec<ModelCall>, ModelError> {
        let mut calls = std::mem::take(&mut self.calls);
        if is_cut {
            calls.retain(|call| !call.name.is_empty());
        }
        if calls.iter().any(|call| call.name.is_empty()) {
            let why = "the stream has a tool call without a name";
            return Err(ModelError::invalid_response(why));
        }
        Ok(calls.into_iter().map(OpenCall::into_call).collect())
    }

    fn place(&self, part: &CallPart<'_>) -> Place {
        let last = self.calls.len().checked_sub(1);
        if let Some(at) = self.with_id(part) {
            return self.calls[at].place(at, part);
        }
        let with_index = part
            .index
            .and_then(|index| self.calls.iter().rposition(|call| call.index == Some(index)));
        let stated = if part.index.is_some() { with_index } else { last };
        if let Some(at) = stated.filter(|at| self.calls[*at].is_unnamed(part)) {
            return Place::Call(at);
        }
        if !part.name.is_empty() {
            return match stated {
                Some(at) if !part.has_id() && self.calls[at].name == part.name => {
                    self.calls[at].place(at, part)
                }
                _ => Place::New,
            };
        }
        let growing = with_index.filter(|at| self.calls[*at].can_take(part));
        growing.or(last).map_or(Place::New, Place::Call)
    }

    /// Returns the call with one of the ids of a part, by its index if there are several.
    fn with_id(&self, part: &CallPart<'_>) -> Option<usize> {
        let with_both = self.calls.iter().rposition(|call| {
            call.has_id(part.id, part.item) && part.index.is_some() && call.index == part.index
        });
        with_both.or_else(|| self.calls.iter().rposition(|call| call.has_id(part.id, part.item)))
    }
}

/// Where a part belongs.
enum Place {
    Call(usize),
    New,
    /// It has arrived before.
    Repetition,
}

impl CallPart<'_> {
    fn has_id(&self) -> bool {
        !(self.id.is_empty() && self.item.is_empty())
    }

    fn is_empty(&self) -> bool {
        !self.has_id() && self.name.is_empty() && self.is_blank() && !self.is_inside_text()
    }

    /// Whether it has no arguments, or only spaces.
    fn is_blank(&self) -> bool {
        match &self.arguments {
            Arguments::None => true,
            Arguments::Piece(text) | Arguments::Whole(text) => text.trim().is_empty(),
            Arguments::At(_) => false,
        }
    }

    /// Whether it has spaces, which may belong to a string.
    fn is_inside_text(&self) -> bool {
        matches!(&self.arguments, Arguments::Piece(text) if !text.is_empty())
    }
}

impl OpenCall {
    fn has_id(&self, id: &str, item: &str) -> bool {
        !id.is_empty() && self.id == id || !item.is_empty() && self.item == item
    }

    /// Whether a part repeats the beginning of this call.
    fn is_announced_by(&self, part: &CallPart<'_>) -> bool {
        self.has_id(part.id, part.item) && self.index == part.index && self.is_bare()
    }

    /// Whether a part is this call once more: it has the same id, name and arguments.
    fn is_same_as(&self, part: &CallPart<'_>) -> bool {
        self.has_id(part.id, part.item) && self.name == part.name && self.has_arguments_of(part)
    }

    /// Whether a part of an event that repeats the whole answer is this call: by its id, or by what it says if one of both
    /// has no id.
    fn is_repeated_by(&self, part: &CallPart<'_>) -> bool {
        if self.has_id(part.id, part.item) {
            return true;
        }
        let lacks_id = !part.has_id() || self.id.is_empty() && self.item.is_empty();
        let is_open = !self.progress.is_complete();
        lacks_id && self.name == part.name && (is_open || self.has_arguments_of(part))
    }

    fn has_arguments_of(&self, part: &CallPart<'_>) -> bool {
        match &part.arguments {
            Arguments::Piece(text) | Arguments::Whole(text) => text.trim() == self.arguments.trim(),
            Arguments::None => self.is_bare(),
            Arguments::At(_) => false,
        }
    }

    /// Whether the arguments of a part can follow those that have arrived.
    fn can_take(&self, part: &CallPart<'_>) -> bool {
        !self.progress.is_complete() || part.is_blank()
    }

    /// Whether no arguments have arrived.
    fn is_bare(&self) -> bool {
        let has_initial = !matches!(self.initial.as_str(), "" | "{}");
        self.arguments.is_empty() && self.value.is_none() && !has_initial
    }

    /// Whether the name of a part, which other ids do not contradict, is the name of this call.
    fn is_unnamed(&self, part: &CallPart<'_>) -> bool {
        self.name.is_empty() && (self.id.is_empty() || part.id.is_empty())
    }

    /// Decides about a part with the id or the name of this call, which is at `at`.
    fn place(&self, at: usize, part: &CallPart<'_>) -> Place {
        let Arguments::Piece(piece) = &part.arguments else { return Place::Call(at) };
        if part.name.is_empty() || part.is_blank() || !self.progress.is_complete() {
            return Place::Call(at);
        }
        let is_same = part.has_id()
            && (part.index.is_none() || part.index == self.index)
            && part.name == self.name
            && piece.trim() == self.arguments.trim();
        if is_same { Place::Repetition } else { Place::New }
    }

    fn add(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        for (own, stated) in
            [(&mut self.id, part.id), (&mut self.item, part.item), (&mut self.name, part.name)]
        {
            if own.is_empty() {
                stated.clone_into(own);
            }
        }
        match part.arguments {
            Arguments::None => {}
            Arguments::Piece(piece) => {
                self.progress.advance(&piece);
                self.arguments.push_str(&piece);
            }
            // An empty text is absent: the pieces count.
            Arguments::Whole(text) if text.trim().is_empty() => {}
            Arguments::Whole(text) => {
                self.progress = ObjectProgress::default();
                self.progress.advance(&text);
                self.arguments = text;
            }
            Arguments::At(piece) => {
                let value = self.value.get_or_insert_with(|| Value::Object(Map::new()));
                partial::insert(value, piece)?;
            }
        }
        Ok(())
    }

    fn into_call(self) -> ModelCall {
        let arguments = match self.value {
            // Text beside it does not fit, and both together are not JSON.
            Some(value) => format!("{}{value}", self.arguments),
            None if self.arguments.trim().is_empty() => self.initial,
            None => self.arguments,
        };
        ModelCall { id: self.id, name: self.name, arguments }
    }
}

/// How far a text that should be one JSON object has arrived. It looks at each character once, and does not
/// validate.
#[derive(Debug, Default)]
struct ObjectProgress {
    /// Brackets and braces that are open.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    is_closed: bool,
}

impl ObjectProgress {
    /// Whether the object has ended. Other values never do.
    fn is_complete(&self) -> bool {
        self.is_closed
    }

    fn advance(&mut self, text: &str) {
        for byte in text.bytes() {
            if std::mem::take(&mut self.is_escaped) {
                continue;
            }
            match byte {
                b'\\' => self.is_escaped = self.is_in_string,
                b'"' => self.is_in_string = !self.is_in_string,
                _ if self.is_in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed |= self.depth == 0 && byte == b'}';
                }
                _ => {}
            }
        }
    }
}
