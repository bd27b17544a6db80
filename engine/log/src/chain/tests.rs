//! A log of a few events, and every way to tamper with it.

use abide_schema::{Event, Micros, Seq};

use super::*;
use crate::encoding::{chained_hash, commitment};

fn log() -> Vec<Event> {
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
                salt: [n as u8 + 1; 16],
                rows_hash: [6; 32],
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
    let last_two: String = log()[2..]
        .iter()
        .map(|event| event.hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
        .collect();
    expect_test::expect![[r#"
        8df00d441dc44d9a46d72b8420be913299aa1068b7c43aa99f4f6fde35afb39d
        ad9ce07fd5c94e01fd38cdecc2e1678edd6e7746eacdfa64528eab494d06062d
    "#]]
    .assert_eq(&last_two);
}

/// The chain is computed from commitments, so the committed contents can be erased.
#[test]
fn the_chain_verifies_without_erased_contents() {
    let mut log = log();
    let event = &mut log[2];
    let kept = commitment(event, &Digests::from_event(event));
    event.session_id = None;
    event.request_id = None;
    event.salt = [0; 16];
    event.arguments = String::new();
    event.outcome = String::new();
    assert_eq!(chained_hash(event, &kept), event.hash);
    assert_eq!(log[3].prev_hash, log[2].hash);
}

/// An attacker that knows an event's hash and everything except a number in its arguments cannot find the number: no
/// candidate gives the hash without the salt.
#[test]
fn a_hash_does_not_confirm_guesses_of_the_contents() {
    let event = log().swap_remove(2);
    let guess = |salt| {
        (0..10_000).find(|pin| {
            let arguments = format!("{{\"n\":{pin}}}");
            let guessed = Event { arguments, salt, ..event.clone() };
            event_hash(&guessed, &Digests::from_event(&guessed)) == event.hash
        })
    };
    assert_eq!(guess(event.salt), Some(2), "with the salt it is found");
    assert_eq!(guess([0; 16]), None);
}

#[test]
fn every_altered_field_is_detected_at_its_event() {
    let alterations: [fn(&mut Event); 12] = [
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
        |event| event.salt = [0; 16],
    ];
    for (at, alter) in alterations.iter().enumerate() {
        let mut altered = log();
        alter(&mut altered[2]);
        let broken = ChainBreak { seq: Seq(3), flaw: Flaw::Altered };
        assert_eq!(walk(&altered), Err(broken), "alteration {at}");
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
