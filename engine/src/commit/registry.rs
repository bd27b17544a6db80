//! The reducers by name, and the preparation of calls: everything that can be done before
//! the writer gets a call is done here, on the caller's thread.

use std::collections::{BTreeMap, BTreeSet};

use abide_schema::reducer::Definition;
use abide_schema::{Code, Listing, Module, Refusal, integers, limits, nearest};
use serde_json::Value as JsonValue;
use sha2::{Digest as _, Sha256};

use crate::commit::outcome::CanonicalArguments;
use crate::commit::prepared_call::PreparedCall;
use crate::commit::request_ids;

/// The registered reducers.
#[derive(Debug)]
pub(crate) struct Registry {
    definitions: BTreeMap<&'static str, Definition>,
    /// Reducers that only the engine calls: deadlines and records.
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

    /// Prepares an external call. Omitted (null) arguments are an empty object.
    pub(crate) fn ready(
        &self,
        reducer: &str,
        arguments: &JsonValue,
    ) -> Result<PreparedCall, Refusal> {
        if self.of_engine.contains(reducer) {
            let detail = format!("{reducer} can only be called by the engine");
            return Err(Refusal::new(Code::Denied, detail));
        }
        // The server checks the incoming text; an embedded caller passes values. Deadlines and replays skip these checks:
        // a log may contain arguments accepted by earlier versions. The depth comes first: all that follows recurses.
        if let (Some(definition), Some(members)) =
            (self.definitions.get(reducer), arguments.as_object())
        {
            check_depths(definition, members)?;
        }
        let ready = self.ready_any(reducer, arguments)?;
        integers::check(&ready.arguments.text).map_err(|found| {
            let refusal = Refusal::from(found);
            Refusal { detail: format!("{reducer}: {}", refusal.detail), ..refusal }
        })?;
        Ok(ready)
    }

    /// Prepares any call, including those only the engine makes.
    pub(crate) fn ready_any(
        &self,
        reducer: &str,
        arguments: &JsonValue,
    ) -> Result<PreparedCall, Refusal> {
        let definition = self.definitions.get(reducer).ok_or_else(|| self.unknown(reducer))?;
        let none = serde_json::Map::new();
        let members = match arguments {
            JsonValue::Object(members) => members,
            JsonValue::Null => &none,
            _ => {
                let detail = format!("{reducer}: the arguments are not a JSON object");
                return Err(Refusal::new(Code::BadArguments, detail)
                    .hint("arguments are named: {\"session_id\": \"…\"}"));
            }
        };
        let call = (definition.decode)(members)?;
        let arguments = CanonicalArguments::of(members);
        if arguments.text.len() > limits::CALL_BYTES {
            let (bytes, max) = (arguments.text.len(), limits::CALL_BYTES);
            let detail = format!("{reducer}: the arguments have {bytes} bytes; the limit is {max}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("keep large content elsewhere and append a reference to it"));
        }
        let digest = Sha256::digest(arguments.text.as_bytes()).into();
        Ok(PreparedCall { reducer: definition.name, call, arguments, digest })
    }

    fn unknown(&self, reducer: &str) -> Refusal {
        unknown(reducer, self.definitions().map(|definition| definition.name))
    }

    /// The names of the reducers that callers may call.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.definitions().map(|definition| definition.name).collect()
    }
}

/// Checks the depth of each argument: what is stored is written into larger JSON later, which must still be readable.
fn check_depths(
    definition: &Definition,
    members: &serde_json::Map<String, JsonValue>,
) -> Result<(), Refusal> {
    members.iter().try_for_each(|(name, value)| {
        integers::check_depth_within(value, definition.depth).map_err(|found| {
            let detail = format!("{}: the argument {name} {found}", definition.name);
            Refusal { detail, ..Refusal::from(found) }
        })
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
