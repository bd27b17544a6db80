//! Files and messages with random modifications: nothing panics, and `verify` detects every changed
//! byte of the log. (Not a fuzzer: only the seed guides it.)

use std::fs;
use std::io::Write as _;
use std::sync::Arc;

use abide_engine::{replay, verify_file};
use abide_server::protocol;
use abide_sim::disk::{Fault, Machine};
use abide_sim::random::Random;
use abide_sim::rig::{Rig, VirtualClock, folder};
use abide_sim::script::ScriptRun;

const FILES: u64 = 400;
const MESSAGES: u64 = 20_000;

/// Changes a few bytes, a range of bytes, or the length.
fn tamper(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let end = (at + random.below(600)).min(bytes.len());
                bytes[at..end].fill(random.below(256) as u8);
            }
            2 => {
                let stretch = bytes[at..(at + random.below(64)).min(bytes.len())].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, stretch);
            }
            3 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at] = random.below(256) as u8,
        }
    }
}

#[test]
fn verify_never_panics_or_accepts_another_log() {
    let whole = folder();
    let clock = VirtualClock::new();
    let machine = Arc::new(Machine::new(Fault::None, 1));
    let rig = Rig::open(whole.path(), &machine, &clock).unwrap();
    assert_eq!(ScriptRun::new(&rig).play(), Ok(()));
    rig.close();
    let original = fs::read(whole.path().join("abide.db")).unwrap();
    let honest =
        verify_file(&whole.path().join("abide.db"), abide_reducers::modules(), &mut |_| {})
            .unwrap();
    let mut refused = 0;
    let bad = folder();
    for seed in 0..FILES {
        let mut bytes = original.clone();
        let mut random = Random::new(seed);
        tamper(&mut bytes, &mut random);
        let file = bad.path().join(format!("{seed}.db"));
        fs::write(&file, &bytes).unwrap();
        match verify_file(&file, abide_reducers::modules(), &mut |_| {}) {
            // A replay detects changes outside of the log; here it must only terminate.
            Ok(verified) => {
                let log = (verified.events, verified.hash);
                assert_eq!(
                    log,
                    (honest.events, honest.hash),
                    "seed {seed}: another log was accepted"
                );
                if random.one_in(8) {
                    let into = bad.path().join(format!("{seed}-again.db"));
                    let _ = replay(&file, &into, abide_reducers::modules(), None, &mut |_| {});
                }
            }
            Err(_) => refused += 1,
        }
        fs::remove_file(&file).unwrap();
    }
    assert!(refused > FILES / 4, "{refused} of {FILES} are refused");
    writeln!(std::io::stdout(), "counted: {FILES} modified files, {refused} refused").unwrap();
}

#[test]
fn no_message_makes_the_server_panic() {
    let honest = [
        r#"{"op":"subscribe","id":"q1","sql":"SELECT :s","params":{"s":"x"},"after_seq":40}"#,
        r#"{"op":"call","id":"c1","reducer":"a","args":{"content":"hi"},"request_id":"r"}"#,
        r#"{"op":"batch","id":"b1","calls":[{"reducer":"a","args":[1,2.5e300,null]}]}"#,
        r#"{"op":"sql","id":"s1","sql":"SELECT 1","params":{"x":{"$blob":"AAAA"}}}"#,
        r#"{"op":"ping"}"#,
    ];
    let mut refused = 0;
    for seed in 0..MESSAGES {
        let mut random = Random::new(seed);
        let mut bytes = random.pick(&honest).as_bytes().to_vec();
        tamper(&mut bytes, &mut random);
        if let Err((_, refusal)) = protocol::read(&String::from_utf8_lossy(&bytes)) {
            assert!(!refusal.detail.is_empty(), "seed {seed}");
            refused += 1;
        }
    }
    assert!(refused > MESSAGES / 4, "{refused} of {MESSAGES} are refused");
    writeln!(std::io::stdout(), "counted: {MESSAGES} modified messages").unwrap();
}
