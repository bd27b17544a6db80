//! The tool calls of an answer that is still arriving. All protocols assemble their calls here.
//!
//! A stream sends a call in parts, and many servers leave out or repeat what would identify them: ids, indexes,
//! names. A part that goes to the wrong call makes a tool run with arguments that the model did not write. So parts
//! are assigned by identity, see [`OpenCalls::add_part`], and arguments that do not fit together are kept as they are:
//! they are not JSON, and the model gets an error instead of a result.
//!
//! Servers also send a call again: in a final list, under another index, or with other ids. Such a repetition must not
//! become a second call, see [`OpenCalls::repeat`] and [`OpenCalls::finish`]. Arguments are compared as JSON values.

mod arguments;
#[cfg(test)]
mod tests;
mod unread;

use std::cell::{LazyCell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use serde_json::{Map, Value};

use self::arguments::{canonical, is_json, is_placeholder, settled};

pub(super) use self::unread::{
    has_unread_arguments, may_be_beside, may_have_arguments, unread_arguments,
};
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
    /// Whether the stream has something that is not read and may be arguments.
    has_unread: bool,
    /// How often the provider has said that the answer ends.
    stops: usize,
    positions: Vec<usize>,
}

#[derive(Debug, Default)]
struct OpenCall {
    id: String,
    item: String,
    index: Option<u64>,
    /// How often the provider had said that the answer ends, before this call began.
    stops: usize,
    name: String,
    /// The text so far.
    arguments: String,
    /// The canonical form of the text or value, once it was compared: an answer can have a thousand calls.
    canonical: OnceCell<String>,
    progress: ObjectProgress,
    /// The value so far, if it arrives by paths.
    value: Option<Value>,
    /// The size of its pieces, so that each of them costs the same, however many have arrived.
    value_bytes: usize,
    /// What counts if nothing else arrives.
    initial: String,
    /// Whether the provider has announced more arguments.
    continues: bool,
    /// The paths of the texts of which the provider has announced more.
    open_texts: BTreeSet<String>,
    /// Whether the event that ends its item has arrived.
    is_done: bool,
    /// Whether its arguments have arrived as a whole, so that no piece can be missing.
    is_stated_whole: bool,
}

/// How a call of a list that repeats the answer is recognized. The first ways are the most certain.
#[derive(Clone, Copy)]
enum Match {
    IdAndArguments,
    Id,
    Index,
    Arguments,
    /// It is the next in order, whatever it says.
    Order,
}

impl OpenCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The size of the calls so far.
    pub(super) fn bytes(&self) -> usize {
        self.calls.iter().map(OpenCall::bytes).sum()
    }

    /// Begins a call where the protocol marks the beginning of each.
    pub(super) fn begin(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        if self.calls.len() == CALLS_MAX {
            let why = format!("the answer has more than {CALLS_MAX} tool calls");
            return Err(ModelError::invalid_response(why));
        }
        let mut at_index = self.calls.iter().filter(|call| call.index == part.index);
        if part.index.is_some()
            && let Some(call) = at_index.find(|call| call.has_id(part.id, ""))
        {
            call.check_name(&part)?;
        }
        self.repeated_name = None;
        self.calls.push(OpenCall { index: part.index, stops: self.stops, ..OpenCall::default() });
        self.calls.last_mut().expect("one was just pushed").add(part)
    }

    /// Begins a call, unless it repeats the beginning of one that has no arguments yet. `initial` counts if no other
    /// arguments arrive. Returns the position of the call.
    pub(super) fn announce(
        &mut self,
        part: CallPart<'_>,
        initial: String,
    ) -> Result<usize, ModelError> {
        let announced = self.calls.iter().position(|call| call.is_announced_by(&part));
        let at = match announced {
            Some(at) => {
                self.calls[at].check_name(&part)?;
                at
            }
            None => {
                self.begin(part)?;
                self.calls.len() - 1
            }
        };
        if !initial.trim().is_empty() {
            self.calls[at].initial = initial;
        }
        Ok(at)
    }

    /// Begins a call that arrives complete, unless it repeats one with the same id, or the same index if one of both has no
    /// arguments. Returns the position of the call.
    pub(super) fn add_whole(&mut self, part: CallPart<'_>) -> Result<usize, ModelError> {
        let same = self.calls.iter().position(|call| call.is_same_as(&part));
        let same = same.or_else(|| self.calls.iter().position(|call| call.is_filled_by(&part)));
        let Some(at) = same else {
            self.begin(part)?;
            return Ok(self.calls.len() - 1);
        };
        if self.calls[at].is_bare() || is_empty_object(&self.calls[at].arguments) {
            self.calls[at].add(part)?;
        }
        Ok(at)
    }

    /// Adds all arguments of a call, from an event that ends them or, if `ends_item`, the item of the call. Some servers
    /// make new ids for this event, so the call is also recognized by its index and its arguments.
    pub(super) fn complete(
        &mut self,
        part: CallPart<'_>,
        ends_item: bool,
    ) -> Result<(), ModelError> {
        let with_id = self.with_id(&part).filter(|at| {
            let call = &self.calls[*at];
            !(call.is_done && call.is_at_another_index(&part))
        });
        let stated = LazyCell::new(|| canonical(part.text()));
        let completed = with_id.or_else(|| {
            self.calls.iter().position(|call| call.can_be_completed_by(&part, &stated))
        });
        if completed.is_none()
            && part.index.is_some()
            && let Some(call) =
                self.calls.iter().find(|call| !call.is_done && call.index == part.index)
        {
            call.check_name(&part)?;
        }
        match completed {
            Some(at) => {
                self.calls[at].is_done |= ends_item;
                self.calls[at].add(part)
            }
            None if part.name.is_empty() => self.add_part(part).map(drop),
            None => {
                self.begin(part)?;
                self.calls.last_mut().expect("one was just begun").is_done = ends_item;
                Ok(())
            }
        }
    }

    /// Adds a part. It belongs to the call with its id. Otherwise an id with a name begins a call; another name begins
    /// one, and so does the same name with new arguments after complete ones; a part without a name belongs to the
    /// call with its index if that can grow, and at last to the call that began last, unless its id or index contradicts
    /// that: then it belongs to a call whose name is missing. Returns the position of the call; of an empty part that of the last
    /// one.
    pub(super) fn add_part(&mut self, part: CallPart<'_>) -> Result<usize, ModelError> {
        if part.is_empty() {
            return Ok(self.calls.len().saturating_sub(1));
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
                    self.begin(CallPart { name: &name, ..part })?;
                    return Ok(self.calls.len() - 1);
                }
                self.calls[at].add(part)?;
                Ok(at)
            }
            Place::New => {
                self.begin(part)?;
                Ok(self.calls.len() - 1)
            }
        }
    }

    /// Adds the calls of an event that repeats the whole answer. A call that has arrived before is not added again, even
    /// if its id is another one now: only calls beyond the number of those that arrived are new. If the repetition says
    /// something else, the call keeps both texts, and does not run. Returns the position of each part's call.
    pub(super) fn repeat(&mut self, parts: Vec<CallPart<'_>>) -> Result<Vec<usize>, ModelError> {
        for part in parts.iter().filter(|part| part.has_id()) {
            let mut with_id = self.calls.iter().filter(|call| call.has_id(part.id, part.item));
            if let Some(call) = with_id.next()
                && !with_id.any(|other| other.can_have_name_of(part))
            {
                call.check_name(part)?;
            }
        }
        let arrived: Vec<String> = self.calls.iter().map(OpenCall::stated).collect();
        let mut unmatched: Vec<usize> = (0..self.calls.len()).collect();
        let mut places = vec![0; parts.len()];
        let mut parts: Vec<(usize, String, CallPart<'_>)> = parts
            .into_iter()
            .enumerate()
            .map(|(listed, part)| (listed, canonical(part.text()), part))
            .collect();
        for criterion in
            [Match::IdAndArguments, Match::Id, Match::Index, Match::Arguments, Match::Order]
        {
            let mut others = Vec::new();
            for (listed, arguments, part) in parts {
                let adds_nothing = is_placeholder(&arguments);
                let found = unmatched.iter().position(|at| {
                    let is_same = adds_nothing || arrived[*at] == arguments;
                    self.calls[*at].is_repeated_by(&part, criterion, is_same)
                });
                match found {
                    Some(found) => {
                        places[listed] = unmatched.remove(found);
                        self.calls[places[listed]].add(part)?;
                    }
                    None => others.push((listed, arguments, part)),
                }
            }
            parts = others;
        }
        for (listed, _, part) in parts {
            self.begin(part)?;
            places[listed] = self.calls.len() - 1;
        }
        Ok(places)
    }

    /// Whether a list has all calls that have arrived, each with its arguments. Several calls are not all made again, so
    /// their ids and their order do not matter. A single call can be followed by an equal one: it is repeated by a longer
    /// list or in the last event, unless the list gives it another id.
    pub(super) fn are_repeated_by(&self, list: &[ModelCall], is_last: bool) -> bool {
        if self.calls.is_empty() || list.len() < self.calls.len() {
            return false;
        }
        if let [single] = self.calls.as_slice() {
            let is_enough = is_last || list.len() > 1;
            return is_enough && single.is_whole() && list.iter().any(|it| single.equals(it));
        }
        let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for listed in list {
            *counts.entry((&listed.name, canonical(&listed.arguments))).or_default() += 1;
        }
        self.calls.iter().all(|call| {
            let count = counts.get_mut(&(call.name.as_str(), call.stated()));
            count.filter(|count| call.is_whole() && **count > 0).is_some_and(|count| {
                *count -= 1;
                true
            })
        })
    }

    /// Removes the calls of an item.
    pub(super) fn remove_item(&mut self, item: &str) {
        self.calls.retain(|call| call.item != item);
    }

    /// Whether an item is one of the calls.
    pub(super) fn has_item(&self, item: &str) -> bool {
        self.calls.iter().any(|call| call.has_id("", item))
    }

    /// Whether a call has this index.
    pub(super) fn has_index(&self, index: u64) -> bool {
        self.calls.iter().any(|call| call.index == Some(index))
    }

    /// Returns the position of the call with an id, or of the call that began last if the id is empty or new to it.
    pub(super) fn with_id_or_last(&self, id: &str) -> Option<usize> {
        let with_id = self.calls.iter().rposition(|call| call.has_id(id, ""));
        with_id.or_else(|| {
            let last = self.calls.last()?;
            (id.is_empty() || last.id.is_empty()).then(|| self.calls.len() - 1)
        })
    }

    /// Returns the name of a call whose arguments have arrived in pieces only.
    pub(super) fn in_pieces(&self) -> Option<&str> {
        let call = self.calls.iter().find(|call| !call.is_stated_whole)?;
        Some(&call.name)
    }

    /// Adds arguments to the call at a position.
    pub(super) fn add_arguments(
        &mut self,
        at: usize,
        arguments: Arguments,
    ) -> Result<(), ModelError> {
        self.calls[at].add(CallPart { arguments, ..CallPart::default() })
    }

    /// The provider states whether the arguments of the call at a position continue in a later part.
    pub(super) fn set_continues(&mut self, at: usize, continues: bool) {
        self.calls[at].continues = continues;
    }

    /// The provider states that the call at a position is complete. If no arguments came, there are none.
    pub(super) fn end(&mut self, at: usize) {
        let call = &mut self.calls[at];
        if call.initial.is_empty() {
            call.initial = "{}".to_owned();
        }
    }

    /// The provider has said that the answer ends. What follows may be the answer once more.
    pub(super) fn note_stop(&mut self) {
        self.stops += 1;
    }

    /// The stream has something that is not read and may be arguments. It is unknown of which call, so no call is one without
    /// arguments.
    pub(super) fn note_unread(&mut self) {
        self.has_unread = true;
    }

    pub(super) fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Returns the calls. `is_cut`: the answer ends in the middle, so the last call may be a fragment.
    ///
    /// # Errors
    /// A call has no name, or the provider has announced more of its arguments: it is unknown what the model wants.
    pub(super) fn finish(&mut self, is_cut: bool) -> Result<Vec<ModelCall>, ModelError> {
        let mut calls: Vec<(usize, OpenCall)> =
            std::mem::take(&mut self.calls).into_iter().enumerate().collect();
        if is_cut {
            calls.retain(|(_, call)| !call.name.is_empty());
        }
        if calls.iter().any(|(_, call)| call.name.is_empty()) {
            let why = "the stream has a tool call without a name";
            return Err(ModelError::invalid_response(why));
        }
        if !is_cut && let Some((_, call)) = calls.iter().find(|(_, call)| call.is_open()) {
            let why = format!("the stream ended in the middle of a call of `{}`", call.name);
            return Err(ModelError::invalid_response(why));
        }
        let ended = without_repetitions(without_other_rounds(calls));
        self.positions = ended.iter().map(|ended| ended.at).collect();
        let mut calls: Vec<ModelCall> = ended.into_iter().map(|ended| ended.call).collect();
        if self.has_unread {
            for call in calls.iter_mut().filter(|call| is_placeholder(&call.arguments)) {
                call.arguments.clear();
            }
        }
        Ok(calls)
    }

    /// The positions that the calls had which [`Self::finish`] has returned.
    pub(super) fn positions(&self) -> &[usize] {
        &self.positions
    }

    fn place(&self, part: &CallPart<'_>) -> Place {
        let last = self.calls.len().checked_sub(1);
        if let Some(at) = self.with_id(part) {
            return if self.calls[at].is_beside(part) { Place::New } else { Place::Call(at) };
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
        if let Some(at) = with_index {
            let call = &self.calls[at];
            if call.can_take(part) {
                return Place::Call(at);
            }
            if call.has_other_id(part) {
                return Place::New;
            }
        }
        match last {
            Some(at) if part.is_blank() || self.is_last_meant_by(part) => Place::Call(at),
            _ => Place::New,
        }
    }

    /// Whether a part, which has no name and an unknown id, can belong to the call that began last.
    fn is_last_meant_by(&self, part: &CallPart<'_>) -> bool {
        let Some(last) = self.calls.last() else { return false };
        let has_ids = !(last.id.is_empty() && last.item.is_empty());
        let is_other_item = !part.item.is_empty() && !last.item.is_empty();
        match part.index {
            _ if last.has_other_id(part) => false,
            None => !is_other_item || self.calls.len() == 1,
            // Servers that number all heads alike, and count the arguments. Without ids, an index may say nothing.
            Some(index) if has_ids && !self.has_index(index) => {
                u64::try_from(self.calls.len() - 1) == Ok(index)
            }
            Some(_) => true,
        }
    }

    /// Returns the call with one of the ids of a part, by its index if there are several. An item is one call, and some
    /// servers give the same id to several.
    fn with_id(&self, part: &CallPart<'_>) -> Option<usize> {
        let has_id = |call: &OpenCall| call.has_id(part.id, part.item);
        let calls = &self.calls;
        calls
            .iter()
            .rposition(|call| has_id(call) && part.index.is_some() && call.index == part.index)
            .or_else(|| calls.iter().rposition(|call| call.has_id("", part.item)))
            .or_else(|| calls.iter().rposition(has_id))
    }
}

/// A call at the end of the stream.
struct Ended {
    /// Its position among all calls that have arrived.
    at: usize,
    index: Option<u64>,
    call: ModelCall,
}

/// Returns the calls without those that began after a stop reason and repeat one from before it: some servers send the end of the
/// stream, or all of it, once more, also with other ids. Other calls stay, because some servers send a reason with each call.
fn without_other_rounds(calls: Vec<(usize, OpenCall)>) -> Vec<Ended> {
    /// The equal calls.
    #[derive(Default)]
    struct Equal {
        kept: usize,
        /// The stop reasons before the last of them.
        stops: usize,
        /// How many of those from before these reasons have not come again.
        unrepeated: usize,
    }

    let mut groups: BTreeMap<(String, String), Equal> = BTreeMap::new();
    let mut ended = Vec::new();
    for (at, open) in calls {
        let index = open.index;
        let stops = open.stops;
        let call = open.into_call();
        let group = groups.entry((call.name.clone(), canonical(&call.arguments))).or_default();
        if stops > group.stops {
            group.stops = stops;
            group.unrepeated = group.kept;
        }
        if group.unrepeated > 0 {
            group.unrepeated -= 1;
        } else {
            group.kept += 1;
            ended.push(Ended { at, index, call });
        }
    }
    ended
}

/// Returns the calls without those that repeat one with the same id, or repeat it without its id.
///
/// Of several calls with one id, the one without arguments is a placeholder. At different indexes, different arguments
/// are different calls, because some servers give all calls one id. At one index they contradict each other, and the
/// call keeps both texts: it does not run.
fn without_repetitions(calls: Vec<Ended>) -> Vec<Ended> {
    /// The calls with one id and name.
    #[derive(Default)]
    struct SameId {
        /// The position of a call without arguments, if it is the only one.
        placeholder: Option<usize>,
        by_arguments: BTreeMap<String, usize>,
        by_index: BTreeMap<u64, usize>,
    }

    let mut kept: Vec<Ended> = Vec::new();
    let mut groups: BTreeMap<(String, String), SameId> = BTreeMap::new();
    let mut with_ids: BTreeSet<(String, String)> = BTreeSet::new();
    for ended in calls {
        let call = &ended.call;
        if call.id.is_empty() {
            kept.push(ended);
            continue;
        }
        let arguments = canonical(&call.arguments);
        with_ids.insert((call.name.clone(), arguments.clone()));
        let is_first = !groups.contains_key(&(call.id.clone(), call.name.clone()));
        let group = groups.entry((call.id.clone(), call.name.clone())).or_default();
        if is_placeholder(&call.arguments) {
            if is_first {
                group.placeholder = Some(kept.len());
                kept.push(ended);
            }
            continue;
        }
        if group.by_arguments.contains_key(&arguments) {
            continue;
        }
        let index = ended.index;
        let contradicted = index.and_then(|index| group.by_index.get(&index));
        let at = if let Some(at) = group.placeholder.take() {
            kept[at].call = ended.call;
            at
        } else if let Some(at) = contradicted {
            kept[*at].call.arguments.push_str(&call.arguments);
            *at
        } else {
            kept.push(ended);
            kept.len() - 1
        };
        group.by_arguments.insert(arguments, at);
        if let Some(index) = index {
            group.by_index.insert(index, at);
        }
    }
    kept.retain(|Ended { call, .. }| {
        !call.id.is_empty() || !with_ids.contains(&(call.name.clone(), canonical(&call.arguments)))
    });
    kept
}

/// Where a part belongs.
enum Place {
    Call(usize),
    New,
}

impl<'a> CallPart<'a> {
    /// Returns the part that is a whole call.
    pub(super) fn from_call(call: &'a ModelCall) -> Self {
        Self {
            id: &call.id,
            name: &call.name,
            arguments: Arguments::Whole(call.arguments.clone()),
            ..Self::default()
        }
    }
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

    /// The text of the arguments.
    fn text(&self) -> &str {
        match &self.arguments {
            Arguments::Piece(text) | Arguments::Whole(text) => text,
            Arguments::None | Arguments::At(_) => "",
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

    /// Whether a part has another id than this call.
    fn has_other_id(&self, part: &CallPart<'_>) -> bool {
        !part.id.is_empty() && !self.id.is_empty() && self.id != part.id
    }

    fn is_at_another_index(&self, part: &CallPart<'_>) -> bool {
        part.index.is_some() && self.index.is_some() && part.index != self.index
    }

    /// Whether the name of a part is that of this call, or one of both is not known.
    fn can_have_name_of(&self, part: &CallPart<'_>) -> bool {
        part.name.is_empty() || self.name.is_empty() || part.name == self.name
    }

    /// Checks that a part does not contradict the name of this call: it is unknown which tool the model wants.
    fn check_name(&self, part: &CallPart<'_>) -> Result<(), ModelError> {
        if self.can_have_name_of(part) {
            return Ok(());
        }
        let why = format!("the stream names one call `{}` and `{}`", self.name, part.name);
        Err(ModelError::invalid_response(why))
    }

    /// Whether a part with the id of this call is the head of a call at another index, which has the same id.
    fn is_beside(&self, part: &CallPart<'_>) -> bool {
        let is_growing = !self.is_bare() && !self.progress.is_complete();
        let is_head = !part.name.is_empty() && self.is_at_another_index(part);
        is_head && (!is_growing || !self.can_have_name_of(part))
    }

    /// Whether a complete call is this one once more: it has the same id and name, and the same arguments if both have
    /// some.
    fn is_same_as(&self, part: &CallPart<'_>) -> bool {
        let adds_nothing = part.is_blank() || is_empty_object(part.text());
        self.has_id(part.id, part.item)
            && self.name == part.name
            && (self.is_bare()
                || adds_nothing
                || self.has_arguments_of(part, &LazyCell::new(|| canonical(part.text()))))
    }

    /// Whether this call and a complete one at the same index are one call, because one of both has no arguments.
    fn is_filled_by(&self, part: &CallPart<'_>) -> bool {
        part.index.is_some()
            && self.index == part.index
            && self.name == part.name
            && !self.has_other_id(part)
            && (part.is_blank()
                || is_empty_object(part.text())
                || self.value.is_none() && is_empty_object(&self.arguments))
    }

    /// Whether an event with all arguments, whose ids are not those of this call, completes it.
    fn can_be_completed_by(
        &self,
        part: &CallPart<'_>,
        stated: &impl Deref<Target = String>,
    ) -> bool {
        if self.is_done || !self.can_have_name_of(part) {
            return false;
        }
        match (self.index, part.index) {
            (Some(own), Some(index)) => own == index,
            _ => !self.progress.is_complete() || self.has_arguments_of(part, stated),
        }
    }

    /// Whether a listed call has the name and the arguments of this one, and no other id.
    fn equals(&self, listed: &ModelCall) -> bool {
        let has_other_id = !self.id.is_empty() && !listed.id.is_empty() && self.id != listed.id;
        !has_other_id && self.name == listed.name && self.stated() == canonical(&listed.arguments)
    }

    /// Whether a part of an event that repeats the whole answer is this call. `is_same`: it has no other arguments.
    fn is_repeated_by(&self, part: &CallPart<'_>, criterion: Match, is_same: bool) -> bool {
        let can_be = self.can_have_name_of(part);
        let has_id = can_be && self.has_id(part.id, part.item);
        let is_alike = can_be && (is_same || !self.progress.is_complete());
        match criterion {
            Match::IdAndArguments => has_id && is_same,
            Match::Id => has_id,
            Match::Index => is_alike && part.index.is_some() && self.index == part.index,
            Match::Arguments => is_alike,
            Match::Order => true,
        }
    }

    /// Whether a part has the arguments of this call. `stated` is the canonical form of its text.
    fn has_arguments_of(&self, part: &CallPart<'_>, stated: &impl Deref<Target = String>) -> bool {
        match &part.arguments {
            Arguments::Piece(text) | Arguments::Whole(text) => {
                text.trim() == self.arguments.trim() || **stated == *self.canonical()
            }
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

    /// Decides about a part without an id and with the name of this call, which is at `at`.
    fn place(&self, at: usize, part: &CallPart<'_>) -> Place {
        if part.is_blank() || !self.progress.is_complete() {
            return Place::Call(at);
        }
        let is_placeholder = is_empty_object(part.text()) || is_empty_object(&self.arguments);
        if is_placeholder && part.index.is_some() && part.index == self.index {
            return Place::Call(at);
        }
        Place::New
    }

    fn add(&mut self, part: CallPart<'_>) -> Result<(), ModelError> {
        self.check_name(&part)?;
        for (own, stated) in
            [(&mut self.id, part.id), (&mut self.item, part.item), (&mut self.name, part.name)]
        {
            if own.is_empty() {
                stated.clone_into(own);
            }
        }
        self.is_stated_whole |=
            matches!(&part.arguments, Arguments::Whole(text) if !text.trim().is_empty());
        match part.arguments {
            Arguments::None => {}
            Arguments::Piece(piece) => self.append(&piece),
            // An empty text is absent: the pieces count.
            Arguments::Whole(text) if text.trim().is_empty() => {}
            Arguments::Whole(text) if self.progress.is_complete() => {
                // Another text contradicts the pieces, so both stay.
                if text.trim() != self.arguments.trim() {
                    self.append(&text);
                }
            }
            Arguments::Whole(text) => {
                self.clear();
                self.append(&text);
            }
            Arguments::At(piece) => {
                self.canonical.take();
                if piece.continues() {
                    self.open_texts.insert(piece.path().to_owned());
                } else {
                    self.open_texts.remove(piece.path());
                }
                let value = self.value.get_or_insert_with(|| Value::Object(Map::new()));
                self.value_bytes += partial::insert(value, piece)?;
            }
        }
        Ok(())
    }

    /// The size of the call so far. It grows with each piece, and a call without arguments has a size.
    fn bytes(&self) -> usize {
        size_of::<OpenCall>() + self.name.len() + self.arguments.len() + self.value_bytes
    }

    /// The canonical form of the text or value so far.
    fn canonical(&self) -> &str {
        self.canonical.get_or_init(|| match &self.value {
            Some(value) => canonical(&value.to_string()),
            None => canonical(&self.arguments),
        })
    }

    /// The canonical form of the arguments, also of those that the beginning of the call has.
    fn stated(&self) -> String {
        if self.arguments.is_empty() && self.value.is_none() {
            canonical(&self.initial)
        } else {
            self.canonical().to_owned()
        }
    }

    /// Whether no arguments are missing.
    fn is_whole(&self) -> bool {
        let has_arguments = if self.arguments.is_empty() {
            self.value.is_some() || !self.initial.is_empty()
        } else {
            self.progress.is_complete()
        };
        has_arguments && !self.is_open()
    }

    /// Whether the provider has announced more arguments.
    fn is_open(&self) -> bool {
        self.continues || !self.open_texts.is_empty()
    }

    fn append(&mut self, text: &str) {
        self.canonical.take();
        let has_more = !text.trim().is_empty();
        if has_more && self.progress.is_complete() && is_empty_object(&self.arguments) {
            self.clear();
        }
        self.progress.advance(text);
        self.arguments.push_str(text);
    }

    fn clear(&mut self) {
        self.canonical.take();
        self.progress = ObjectProgress::default();
        self.arguments.clear();
    }

    fn into_call(self) -> ModelCall {
        let arguments = match self.value {
            // Text beside it does not fit, and both together are not JSON.
            Some(value) => settled(format!("{}{value}", self.arguments)),
            None if self.arguments.trim().is_empty() => self.initial,
            None if is_json(&self.initial) => settled(self.initial + &self.arguments),
            None => settled(self.arguments),
        };
        ModelCall { id: self.id, name: self.name, arguments }
    }
}

/// Whether a text is `{}`. It stops at the first other character.
fn is_empty_object(text: &str) -> bool {
    text.chars().filter(|character| !character.is_whitespace()).eq("{}".chars())
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
