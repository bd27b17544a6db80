//! The fuzzer of the target in `ABIDE_FUZZ_TARGET`: libFuzzer generates inputs, guided by code
//! coverage. `cargo xtask fuzz` builds and runs it.

#![no_main]

use std::env;
use std::sync::OnceLock;

use abide_fuzz::{TARGETS, Target};

/// The selected target.
fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("ABIDE_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("unknown target ABIDE_FUZZ_TARGET={name:?}"))
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (target().run)(input));
