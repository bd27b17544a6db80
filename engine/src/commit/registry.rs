//! The reducers by name, and the preparation of calls: everything that can be done before
//! the writer gets a call is done here, on the caller's thread. Who may call a reducer is decided later, in the
//! transaction (`ScopeRules::run_guards`), because roles and policies are rows.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::Definition;
use abide_schema::{CallArguments, Code, Listing, Module, Refusal, integers, limits, nearest};

use crate::commit::prepared_call::PreparedCall;
use crate::commit::request_ids;

/// The registered reducers.
#[derive(Debug)]
pub(crate) struct Registry {
    definitions: BTreeMap<&'static str, Definition>,
    /// Reducers that only the engine calls: those of deadlines, and those that record denials.
    of_engine: BTreeSet<&'static str>,
}

impl Registry {
    pub(crate) fn new(modules: &[Module]) -> Registry {
        let deadlines = modules.iter().flat_map(|module| &module.deadlines);
        let deadlines = deadlines.map(|deadline| deadline.reducer);
        let denial_recorders =
            modules.iter().flat_map(|module| module.denial_recorders.iter().copied());
        let own: Vec<Definition> = deadlines.chain(denial_recorders).collect();
        let reserved = modules.iter().flat_map(|module| &module.reducers).chain(&own);
        let taken = reserved.into_iter().any(|definition| definition.name == request_ids::RECORD);
        assert!(!taken, "{} is reserved for the engine", request_ids::RECORD);
        let mut definitions = BTreeMap::new();
        let reducers = modules.iter().flat_map(|module| &module.reducers);
        for definition in reducers.chain(&own) {
            let before = definitions.insert(definition.name, *definition);
            assert!(before.is_none(), "two reducers are named {}", definition.name);
        }
        let of_engine = own.iter().map(|definition| definition.name).collect();
        Registry { definitions, of_engine }
    }

    /// The reducers that callers may call.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.definitions.values().filter(|definition| !self.of_engine.contains(definition.name))
    }

    /// Prepares the call of a caller.
    ///
    /// # Errors
    /// `denied` for a reducer of the engine itself; `unknown_reducer`; `bad_arguments`; `limit_exceeded`. Arguments that
    /// JSON allows and the log does not, by depth or by an integer beyond 64 bits, are refused, too.
    pub(crate) fn prepare(
        &self,
        reducer: &str,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        if self.of_engine.contains(reducer) {
            let detail = format!("{reducer} can only be called by the engine");
            return Err(Refusal::new(Code::Denied, detail));
        }
        // Deadlines and replays skip the checks of depth and integers: a log may contain arguments that earlier versions
        // accepted. What is stored is written into larger JSON later, which must still be readable.
        if let Some(definition) = self.definitions.get(reducer) {
            check_depths(reducer, &arguments, definition.depth)?;
        }
        if arguments.has_reserved_name() {
            let detail = format!("{reducer}: {}", integers::ReservedName);
            return Err(Refusal { detail, ..integers::ReservedName.into() });
        }
        let ready = self.prepare_any(reducer, arguments)?;
        ready.arguments.check_integers().map_err(|found| {
            let refusal = Refusal::from(found);
            Refusal { detail: format!("{reducer}: {}", refusal.detail), ..refusal }
        })?;
        Ok(ready)
    }

    /// Prepares any call, including those that only the engine makes: for due rows, for records of denials, and in a replay.
    ///
    /// # Errors
    /// `unknown_reducer`; `bad_arguments`; `limit_exceeded`.
    pub(crate) fn prepare_any(
        &self,
        reducer: &str,
        arguments: CallArguments,
    ) -> Result<PreparedCall, Refusal> {
        let definition = self.definitions.get(reducer).ok_or_else(|| self.unknown(reducer))?;
        if !arguments.is_object() {
            let detail = format!("{reducer}: the arguments are not a JSON object");
            return Err(Refusal::new(Code::BadArguments, detail)
                .hint("arguments are named: {\"session_id\": \"…\"}"));
        }
        check_depths(reducer, &arguments, usize::MAX)?;
        let ready = PreparedCall::new(definition.name, definition.decode, arguments)?;
        let bytes = ready.arguments.text().len();
        if bytes > limits::CALL_BYTES {
            let max = limits::CALL_BYTES;
            let detail = format!("{reducer}: the arguments have {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("keep large content elsewhere and append a reference to it"));
        }
        Ok(ready)
    }

    fn unknown(&self, reducer: &str) -> Refusal {
        unknown(reducer, self.definitions().map(|definition| definition.name))
    }

    /// The names of the reducers that callers may call.
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

/// The refusal of a name that is none of these reducers.
pub(crate) fn unknown(reducer: &str, known: impl IntoIterator<Item = &'static str>) -> Refusal {
    let refusal = Refusal::new(Code::UnknownReducer, format!("there is no reducer {reducer:?}"));
    match nearest(reducer, known) {
        Some(name) => refusal.hint(format!("did you mean {name}?")),
        None => refusal.hint(Listing::Reducers.hint()),
    }
}
