//! Arguments of calls: an input is a byte that selects the reducer, followed by the text of its
//! arguments. The call succeeds, or is refused with a code other than `internal` and writes
//! nothing.

use abide_schema::Code;
use abide_schema::reducer::Caller;
use serde_json::Value as JsonValue;

use crate::engine::FuzzEngine;

/// See the [module](self).
pub fn run(input: &[u8]) {
    let Some((choice, text)) = input.split_first() else { return };
    let Ok(args) = serde_json::from_slice::<JsonValue>(text) else { return };
    let modules = abide_reducers::modules();
    let names: Vec<&str> = modules
        .iter()
        .flat_map(|module| module.reducers.iter().map(|reducer| reducer.name))
        .collect();
    let name = names[usize::from(*choice) % names.len()];
    FuzzEngine::with(|bench| {
        let before = bench.engine.durable_seq();
        let caller = Caller::local();
        let called = bench.engine.call(&caller, name, &args, None);
        match bench.runtime.block_on(called) {
            Ok(done) => assert!(done.seq <= bench.engine.durable_seq(), "{name} {args}"),
            Err(refusal) => {
                assert_ne!(refusal.code, Code::Internal, "{name} {args}: {refusal}");
                assert!(!refusal.detail.is_empty(), "{name} {args}");
                // A refusal that records data (a late result) is an event; any other writes
                // nothing.
                let events = bench.engine.durable_seq().0 - before.0;
                assert!(events <= 1, "{name} {args}: {events} events");
            }
        }
        assert_eq!(bench.engine.ready(), Ok(()), "{name} {args}");
    });
}
