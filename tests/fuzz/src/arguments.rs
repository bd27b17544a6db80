//! Arguments of calls: an input is a byte that chooses the reducer, and the text of its arguments. It is answered with a yes, or
//! with a refusal that is no fault of ours, and then nothing was written.

use abide_schema::Code;
use abide_schema::reducer::Caller;
use serde_json::Value as JsonValue;

use crate::bench::Bench;

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
    Bench::with(|bench| {
        let before = bench.engine.durable_seq();
        let caller = Caller::local();
        let called = bench.engine.call(&caller, name, &args, None);
        match bench.runtime.block_on(called) {
            Ok(done) => assert!(done.seq <= bench.engine.durable_seq(), "{name} {args}"),
            Err(refusal) => {
                assert_ne!(refusal.code, Code::Internal, "{name} {args}: {refusal}");
                assert!(!refusal.detail.is_empty(), "{name} {args}");
                // Refused and kept (a late result) is an event; anything else leaves nothing.
                let events = bench.engine.durable_seq().0 - before.0;
                assert!(events <= 1, "{name} {args}: {events} events");
            }
        }
        assert_eq!(bench.engine.ready(), Ok(()), "{name} {args}");
    });
}
