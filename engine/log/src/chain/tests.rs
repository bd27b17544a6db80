//! A log of a few events, and every way to tamper with it.

use abide_schema::{Event, Micros, Seq};

use super::*;

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
                authority: None,
                request_id: (n > 1).then(|| "r".repeat(n as usize)),
                arguments: format!("{{\"n\":{n}}}"),
                outcome: "null".to_owned(),
                prev_hash: [0; 32],
                hash: [0; 32],
            };
            let digests = Digests::of(&event);
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
fn an_untouched_log_passes() {
    assert_eq!(walk(&log()), Ok(Seq(4)));
    assert_eq!(walk(&[]), Ok(Seq::ZERO));
}

#[test]
fn the_hash_of_a_known_event_never_changes() {
    let hex: String = log()[2].hash.iter().map(|byte| format!("{byte:02x}")).collect();
    // Files of released versions depend on it. If this differs, the encoding needs a new tag.
    expect_test::expect!["12c3ddd9d32616bd51c7651319505b8fbb42ecd9833a4d035480b57314497ba5"]
        .assert_eq(&hex);
}

#[test]
fn every_altered_field_is_found_at_its_event() {
    let alterations: [fn(&mut Event); 11] = [
        |event| event.at.0 += 1,
        |event| event.session_id = Some("s_9".to_owned()),
        |event| event.session_id = None,
        |event| event.reducer.push('x'),
        |event| event.caller = "somebody".to_owned(),
        |event| event.authority = Some("{}".to_owned()),
        |event| event.authority = Some(String::new()),
        |event| event.request_id = None,
        |event| event.arguments = "{\"n\":22}".to_owned(),
        |event| event.outcome = "1".to_owned(),
        |event| event.hash[31] ^= 1,
    ];
    for (at, alter) in alterations.iter().enumerate() {
        let mut events = log();
        alter(&mut events[2]);
        assert_eq!(
            walk(&events),
            Err(ChainBreak { seq: Seq(3), flaw: Flaw::Altered }),
            "alteration {at}"
        );
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
fn a_forged_event_breaks_the_link_of_the_next() {
    let mut events = log();
    events[1].arguments = "{}".to_owned();
    events[1].hash = event_hash(&events[1], &Digests::of(&events[1]));
    assert_eq!(walk(&events), Err(ChainBreak { seq: Seq(3), flaw: Flaw::Unlinked }));
}

#[test]
fn missing_and_reordered_events_are_found() {
    let mut missing = log();
    missing.remove(1);
    let gap = Flaw::Gap { expected: Seq(2), found: Seq(3) };
    assert_eq!(walk(&missing), Err(ChainBreak { seq: Seq(2), flaw: gap }));

    let mut reordered = log();
    reordered.swap(1, 2);
    assert_eq!(walk(&reordered).map_err(|broken| broken.seq), Err(Seq(2)));
}

#[test]
fn events_of_another_log_do_not_fit() {
    let mut chain = Chain::start("log-2");
    let broken = chain.check(&log()[0]);
    assert_eq!(broken, Err(ChainBreak { seq: Seq(1), flaw: Flaw::Unlinked }));
}
