//! Modified databases: an input is a list of changes to the same file, four bytes each: three
//! for the offset and one for the new value. `verify` accepts only the original log; opening and
//! replaying such a file must terminate, with any result.

use std::fs;
use std::sync::OnceLock;

use abide_engine::{Config, Engine, Verified, replay, verify_file};
use abide_sim::rig::folder;

use crate::engine::write_played_files;

/// The maximum number of changes to one file.
const CHANGES: usize = 64;

/// See the [module](self).
pub fn run(input: &[u8]) {
    static WHOLE: OnceLock<(Vec<u8>, Verified)> = OnceLock::new();
    let (whole, honest) = WHOLE.get_or_init(whole);
    let mut bytes = whole.clone();
    for change in input.chunks_exact(4).take(CHANGES) {
        let at = u32::from_be_bytes([0, change[0], change[1], change[2]]) as usize % bytes.len();
        bytes[at] = change[3];
    }
    let folder = folder();
    let file = folder.path().join("abide.db");
    fs::write(&file, &bytes).expect("there is room");
    if let Ok(verified) = verify_file(&file, abide_reducers::modules(), &mut |_| {}) {
        let log = (verified.events, verified.hash);
        assert_eq!(log, (honest.events, honest.hash), "another log was accepted");
        let into = folder.path().join("again.db");
        // A replay detects changes outside of the log; here it must only terminate.
        let _ = replay(&file, &into, abide_reducers::modules(), None, &mut |_| {});
    }
    if let Ok(engine) = Engine::open(&file, Config::new(abide_reducers::modules())) {
        engine.close();
    }
}

/// The file after a clean close, and its content.
fn whole() -> (Vec<u8>, Verified) {
    let folder = folder();
    write_played_files(folder.path());
    let file = folder.path().join("abide.db");
    let engine = Engine::open(&file, Config::new(abide_reducers::modules()));
    engine.expect("the file opens").close();
    let verified =
        verify_file(&file, abide_reducers::modules(), &mut |_| {}).expect("the file verifies");
    (fs::read(&file).expect("the file is there"), verified)
}
