//! The reducers by name, and calls that are ready for the writer.
//!
//! Everything that can be done before the writer gets a call is done here, on the caller's thread. Who may call a
//! reducer is decided later, in the transaction (`ScopeRules::run_guards`), because roles and policies are rows.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use abide_log::LONG_CELL_BYTES;
use abide_schema::event::Hash;
use abide_schema::reducer::{Call, Context, DecodeArguments, Definition, Reply};
use abide_schema::{
    Abort, CallArguments, Code, Listing, Module, Refusal, integers, limits, nearest,
};
use sha2::{Digest as _, Sha256};

use crate::commit::outcome::long_values;

/// The name of the event that records the calls of a request id (`request_ids`). No reducer may have it.
pub(crate) const RECORD: &str = "record_request";

/// The registered reducers.
#[derive(Debug)]
pub(crate) struct Registry {
    definitions: BTreeMap<&'static str, Definition>,
    /// The names of the reducers that only the engine calls: those of deadlines, and those that record denials.
    internal: BTreeSet<&'static str>,
}

impl Registry {
    /// Registers the reducers of all modules.
    ///
    /// # Panics
    /// Two reducers have the same name, or one has a name that is reserved.
    pub(crate) fn new(modules: &[Module]) -> Registry {
        let mut definitions = BTreeMap::new();
        let mut internal = BTreeSet::new();
        for module in modules {
            let deadline_reducers = module.deadlines.iter().map(|deadline| &deadline.reducer);
            let internal_reducers = deadline_reducers.chain(&module.denial_recorders);
            internal.extend(internal_reducers.clone().map(|definition| definition.name));
            for definition in module.reducers.iter().chain(internal_reducers) {
                let name = definition.name;
                assert!(name != RECORD, "{RECORD} is reserved for the engine");
                let before = definitions.insert(name, *definition);
                assert!(before.is_none(), "two reducers are named {name}");
            }
        }
        Registry { definitions, internal }
    }

    /// Returns the reducers that callers may call.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.values().filter(|definition| !self.internal.contains(definition.name))
    }

    /// Prepares the call of a caller.
    ///
    /// # Errors
    /// `denied` for a reducer of the engine itself; `unknown_reducer`; `bad_arguments`; `limit_exceeded`. Arguments
    /// that JSON allows and the log does not, by depth or by an integer beyond 64 bits, are refused, too.
    pub(crate) fn prepare(
        &self,
        reducer: &str,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        if self.internal.contains(reducer) {
            let detail = format!("{reducer} can only be called by the engine");
            return Err(Refusal::new(Code::Denied, detail));
        }
        // Deadlines and replays skip the checks of depth and integers: a log may contain arguments that earlier
        // versions accepted. What is stored is written into larger JSON later, which must still be readable.
        if let Some(definition) = self.definitions.get(reducer) {
            check_depths(reducer, &arguments, definition.depth)?;
        }
        if arguments.has_reserved_name() {
            let detail = format!("{reducer}: {}", integers::ReservedName);
            return Err(Refusal { detail, ..integers::ReservedName.into() });
        }
        let call = self.prepare_any(reducer, arguments)?;
        call.arguments.check_integers().map_err(|found| {
            let refusal = Refusal::from(found);
            Refusal { detail: format!("{reducer}: {}", refusal.detail), ..refusal }
        })?;
        Ok(call)
    }

    /// Prepares any call, including those that only the engine makes: for due rows, for records of denials, and in a
    /// replay.
    ///
    /// # Errors
    /// `unknown_reducer`; `bad_arguments`; `limit_exceeded`.
    pub(crate) fn prepare_any(
        &self,
        reducer: &str,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        let definition =
            self.definitions.get(reducer).ok_or_else(|| self.unknown_reducer(reducer))?;
        if !arguments.is_object() {
            let detail = format!("{reducer}: the arguments are not a JSON object");
            return Err(Refusal::new(Code::BadArguments, detail)
                .hint("arguments are named: {\"session_id\": \"…\"}"));
        }
        check_depths(reducer, &arguments, usize::MAX)?;
        let call = PreparedCall::new(definition.name, definition.decode, arguments)?;
        let bytes = call.arguments.text().len();
        if bytes > limits::CALL_BYTES {
            let max = limits::CALL_BYTES;
            let detail = format!("{reducer}: the arguments have {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("keep large content elsewhere and append a reference to it"));
        }
        Ok(call)
    }

    fn unknown_reducer(&self, reducer: &str) -> Refusal {
        unknown_reducer(reducer, self.definitions().map(|definition| definition.name))
    }

    /// Returns the names of the reducers that callers may call.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.definitions().map(|definition| definition.name).collect()
    }
}

fn check_depths(reducer: &str, arguments: &CallArguments, max: usize) -> Result<(), Refusal> {
    arguments.check_depths(max).map_err(|(name, found)| {
        let detail = format!("{reducer}: the argument {name} {found}");
        Refusal { detail, ..Refusal::from(found) }
    })
}

/// Returns the refusal of a name that is none of these reducers.
pub(crate) fn unknown_reducer(
    reducer: &str,
    known: impl IntoIterator<Item = &'static str>,
) -> Refusal {
    let refusal = Refusal::new(Code::UnknownReducer, format!("there is no reducer {reducer:?}"));
    match nearest(reducer, known) {
        Some(name) => refusal.hint(format!("did you mean {name}?")),
        None => refusal.hint(Listing::Reducers.hint()),
    }
}

/// A call that is decoded, checked, and hashed.
pub(crate) struct PreparedCall {
    pub(crate) reducer: &'static str,
    decode: DecodeArguments,
    /// The reducer's own arguments, until it takes them.
    decoded: Cell<Option<Box<dyn Call>>>,
    pub(crate) arguments: CallArguments,
    /// SHA-256 of the text of the arguments.
    pub(crate) digest: Hash,
    /// Where the arguments have a long text, and its SHA-256, so that the writer need not hash a row that repeats it.
    long_texts: Vec<(Range<usize>, Hash)>,
}

impl PreparedCall {
    /// Decodes the arguments.
    ///
    /// # Errors
    /// `bad_arguments`.
    pub(crate) fn new(
        reducer: &'static str,
        decode: DecodeArguments,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        let decoded = Cell::new(Some(decode(&arguments)?));
        let text = arguments.text().as_bytes();
        let digest = Sha256::digest(text).into();
        let long_texts = long_values(&arguments)
            .filter(|place| place.len() > LONG_CELL_BYTES)
            .map(|place| (place.clone(), Sha256::digest(&text[place]).into()))
            .collect();
        Ok(PreparedCall { reducer, decode, decoded, arguments, digest, long_texts })
    }

    /// Returns the SHA-256 of a long cell that repeats a text of the arguments; `None` if it does not.
    pub(crate) fn known_digest(&self, cell: &[u8]) -> Option<Hash> {
        let text = self.arguments.text().as_bytes();
        let is_same = |(place, _): &&(Range<usize>, Hash)| text[place.clone()] == *cell;
        self.long_texts.iter().find(is_same).map(|(_, digest)| *digest)
    }

    /// Decodes the arguments again if a run has taken them, so that the writer need not.
    pub(crate) fn decode_again(&self) {
        let decoded = self.decoded.take().or_else(|| (self.decode)(&self.arguments).ok());
        self.decoded.set(decoded);
    }

    /// Runs the call. The reducer takes the decoded arguments, without a copy, since nearly every call runs once. A
    /// call that runs again is decoded again.
    ///
    /// # Errors
    /// Those of the reducer.
    pub(crate) fn run(&self, context: &mut Context<'_>) -> Result<Reply, Abort> {
        let call = match self.decoded.take() {
            Some(call) => call,
            None => (self.decode)(&self.arguments)?,
        };
        call.run(context)
    }
}

impl fmt::Debug for PreparedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.reducer, self.arguments.text())
    }
}
