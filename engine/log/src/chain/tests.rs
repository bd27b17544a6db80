//! A log of a few events, and every way to tamper with it.

use abide_schema::event::Salt;
use abide_schema::{Event, Micros, Seq};

use super::*;
use crate::encoding::{chained_hash, commitment};

/// Events of the current format.
fn log() -> Vec<Event> {
    events(|n| Some([n as u8 + 1; 16]))
}

/// Events with these salts.
fn events(salt: impl Fn(i64) -> Option<Salt>) -> Vec<Event> {
    let mut chain = Chain::start("log-1");
    (0..4)
        .map(|n| {
            let mut event = Event {
                seq: Seq::ZERO,
                at: Micros(1_700_000_000_000_000 + n),
                session_id: (n % 2 == 0).then(|| format!("s_{n}")),
                reducer: "append_message".to_owned(),
                caller: "local".to_owned(),
                authority: (n == 3).then(|| "{}".to_owned()),
                salt: salt(n),
                request_id: (n > 1).then(|| "r".repeat(n as usize)),
                arguments: format!("{{\"n\":{n}}}"),
                outcome: "null".to_owned(),
                prev_hash: [0; 32],
                hash: [0; 32],
            };
            let digests = Digests::from_event(&event);
            chain.append(&mut event, &digests);
            event
        })
        .collect()
}

fn walk(events: &[Event]) -> Result<Seq, ChainBreak> {
    let mut chain = Chain::start("log-1");
    events.iter().try_for_each(|event| chain.check(event))?;
    Ok(chain.seq)
}

#[test]
fn an_unmodified_log_verifies() {
    assert_eq!(walk(&log()), Ok(Seq(4)));
    assert_eq!(walk(&[]), Ok(Seq::ZERO));
}

/// Files of released versions depend on these. If one differs, the encoding needs a new tag.
#[test]
fn the_hashes_of_known_events_never_change() {
    let last_two = |events: Vec<Event>| {
        events[2..]
            .iter()
            .map(|event| {
                event.hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
            })
            .collect::<String>()
    };
    expect_test::expect![[r#"
        9f50ae94990ee6c6a7764b1db93db463a90183b152b0c2e1f8f7c96514c33503
        407a75cc988db599d1fdd1c647ad7480716b7e35476a2174d2074964e1b7f416
    "#]]
    .assert_eq(&last_two(log()));
    expect_test::expect![[r#"
        12c3ddd9d32616bd51c7651319505b8fbb42ecd9833a4d035480b57314497ba5
        d10c0fc50da92cbd1a4668eed0eeb90c6b9a711d72b4898c000133c6b4621955
    "#]]
    .assert_eq(&last_two(events(|_| None)));
}

/// A log that started in format 1 and continues in the current one.
#[test]
fn a_log_can_start_without_salts() {
    let mut events = events(|n| (n > 1).then_some([9; 16]));
    assert_eq!(walk(&events), Ok(Seq(4)));
    events[2].salt = None;
    assert_eq!(walk(&events), Err(ChainBreak { seq: Seq(3), flaw: Flaw::Altered }));
}

/// The chain is computed from commitments, so the committed contents can be erased.
#[test]
fn the_chain_verifies_without_erased_contents() {
    let mut log = log();
    let event = &mut log[2];
    let kept = commitment(event, &event.salt.expect("salted"), &Digests::from_event(event));
    event.session_id = None;
    event.request_id = None;
    event.salt = None;
    event.arguments = String::new();
    event.outcome = String::new();
    assert_eq!(chained_hash(event, &kept), event.hash);
    assert_eq!(log[3].prev_hash, log[2].hash);
}

/// An attacker that knows an event's hash and everything except a number in its arguments cannot find the number: no
/// candidate gives the hash, without a salt or with any salt that the reader can name.
#[test]
fn a_hash_does_not_confirm_guesses_of_the_contents() {
    let guess = |log: &[Event], salt: Option<Salt>| {
        (0..10_000).find(|pin| {
            let mut event = log[2].clone();
            event.arguments = format!("{{\"n\":{pin}}}");
            event.salt = salt;
            event_hash(&event, &Digests::from_event(&event)) == event.hash
        })
    };
    assert_eq!(guess(&events(|_| None), None), Some(2), "events of format 1 could be guessed");
    for salt in [None, Some([0; 16])] {
        assert_eq!(guess(&log(), salt), None);
    }
}

#[test]
fn every_altered_field_is_detected_at_its_event() {
    let alterations: [fn(&mut Event); 13] = [
        |event| event.at.0 += 1,
        |event| event.session_id = Some("s_9".to_owned()),
        |event| event.session_id = None,
        |event| event.reducer.push('x'),
        |event| event.caller = "eve".to_owned(),
        |event| event.authority = Some("{}".to_owned()),
        |event| event.authority = Some(String::new()),
        |event| event.request_id = None,
        |event| event.arguments = "{\"n\":22}".to_owned(),
        |event| event.outcome = "1".to_owned(),
        |event| event.hash[31] ^= 1,
        |event| event.salt = None,
        |event| event.salt = Some([0; 16]),
    ];
    for events in [log(), events(|_| None)] {
        for (at, alter) in alterations.iter().enumerate() {
            let mut altered = events.clone();
            alter(&mut altered[2]);
            if altered == events {
                continue;
            }
            let broken = ChainBreak { seq: Seq(3), flaw: Flaw::Altered };
            assert_eq!(walk(&altered), Err(broken), "alteration {at}");
        }
    }
}

#[test]
fn text_cannot_move_from_one_field_to_the_next() {
    let mut events = log();
    events[1].reducer = "append_messagel".to_owned();
    events[1].caller = "ocal".to_owned();
    assert_eq!(walk(&events), Err(ChainBreak { seq: Seq(2), flaw: Flaw::Altered }));
}

#[test]
fn a_forged_event_breaks_the_next_link() {
    let mut events = log();
    events[1].arguments = "{}".to_owned();
    events[1].hash = event_hash(&events[1], &Digests::from_event(&events[1]));
    assert_eq!(walk(&events), Err(ChainBreak { seq: Seq(3), flaw: Flaw::Unlinked }));
}

#[test]
fn missing_and_reordered_events_are_detected() {
    let mut missing = log();
    missing.remove(1);
    let gap = Flaw::Gap { expected: Seq(2), found: Seq(3) };
    assert_eq!(walk(&missing), Err(ChainBreak { seq: Seq(2), flaw: gap }));

    let mut reordered = log();
    reordered.swap(1, 2);
    assert_eq!(walk(&reordered).map_err(|broken| broken.seq), Err(Seq(2)));
}

#[test]
fn events_of_another_log_are_detected() {
    let mut chain = Chain::start("log-2");
    let broken = chain.check(&log()[0]);
    assert_eq!(broken, Err(ChainBreak { seq: Seq(1), flaw: Flaw::Unlinked }));
}
