//! The fuzzer of one target, which `ABIDE_FUZZ_TARGET` names: libFuzzer makes up inputs, guided by what of our code they
//! reach. `cargo xtask fuzz` builds and runs it.

#![no_main]

use std::env;
use std::sync::OnceLock;

use abide_fuzz::{TARGETS, Target};

/// The one that is wanted.
fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("ABIDE_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == name);
        found.unwrap_or_else(|| panic!("ABIDE_FUZZ_TARGET={name:?} is none of them"))
    })
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| (target().run)(input));
