//! Streams as text, and what the parser reads from them, at every split of the bytes.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

/// The events of a stream that is split into these pieces, and the error.
fn parse(mut parser: Parser, pieces: &[&[u8]]) -> (Vec<Event>, Option<EventTooLarge>) {
    let mut events = Vec::new();
    for piece in pieces {
        parser.feed(piece);
        while let Some(next) = parser.next_event() {
            match next {
                Ok(event) => events.push(event),
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}

fn describe(event: &Event) -> String {
    let fields = [
        event.event.clone().map(|value| format!("event={value}")),
        event.id.clone().map(|value| format!("id={value}")),
        event.retry_ms.map(|value| format!("retry={value}")),
        event.data.as_ref().map(|_| format!("data={:?}", event.text())),
        event.error.as_deref().map(|value| format!("error={:?}", String::from_utf8_lossy(value))),
    ];
    fields.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn check(stream: &[u8], expected: Expect) {
    let (events, error) = parse(Parser::new(100), &[stream]);
    let error = error.map(|error| format!("! {error}\n")).unwrap_or_default();
    let events: String = events.iter().map(|event| describe(event) + "\n").collect();
    expected.assert_eq(&(events + &error));
}

#[test]
fn events_have_the_fields_of_the_standard() {
    check(
        b"\xef\xbb\xbfevent: a\r\ndata: one\r\ndata:two\r\n\r\n: comment\n\nid: 3\nretry: 250\n\n\
        data: three\rdata:  \xc3\xa9\r\rdata\n\ndata:\n\nevent\nother: field\n\ndata: truncated",
        expect![[r#"
            event=a data="one\ntwo"
            id=3 retry=250
            data="three\n é"
            data=""
            data=""
            event=
        "#]],
    );
}

#[test]
fn the_last_field_of_a_name_counts() {
    check(
        b"event: a\nevent: b\nid: 1\nid: 2\nretry: 1\nretry: 2\n\n",
        expect![[r#"
            event=b id=2 retry=2
        "#]],
    );
}

#[test]
fn invalid_values_are_ignored() {
    check(
        b"id: 1\nid: a\0b\nretry: 5\nretry: +6\nretry: 7s\nretry:\n\
        retry: 99999999999999999999\ndata: \xff\n\n",
        expect![[r#"
            id=1 retry=5 data="�"
        "#]],
    );
}

#[test]
fn the_field_error_is_kept() {
    check(
        b"error: {\"code\":500}\n\ndata: a\nerror: b\nerror: c\n\n",
        expect![[r#"
            error="{\"code\":500}"
            data="a" error="b\nc"
        "#]],
    );
}

#[test]
fn a_truncated_event_is_returned_on_request() {
    let mut parser = Parser::new(100);
    parser.feed(b"data: a\n\ndata: b\ndata: c");
    parser.finish();
    let events: Vec<_> = std::iter::from_fn(|| parser.next_event()).collect();
    let texts: Vec<_> = events.iter().flatten().map(Event::text).collect();
    assert_eq!(texts, ["a", "b\nc"]);
}

#[test]
fn an_event_has_a_size_limit() {
    // The second line is complete, and too long together with the first.
    check(
        &[b"data: a\n\nid: ", &[b'x'; 50][..], b"\ndata: ", &[b'y'; 45], b"\n\ndata: b\n\n"]
            .concat(),
        expect![[r#"
            data="a"
            ! an event has more than 100 bytes
        "#]],
    );
    // Comments are not kept.
    let comment = [b":", &[b'x'; 90][..], b"\n"].concat();
    check(
        &[&comment[..], &comment, b"data: a\n\n"].concat(),
        expect![[r#"
        data="a"
    "#]],
    );
    // A line without an end is not collected.
    let mut parser = Parser::new(10);
    for _ in 0..20 {
        parser.feed(b"data: 0");
    }
    assert_eq!(parser.next_event(), Some(Err(EventTooLarge { max_bytes: 10 })));
    assert!(parser.lines.next_line(&mut &b"\n"[..], 0).is_ok_and(|line| line == Some(b"")));
}

#[test]
fn events_do_not_depend_on_the_size_of_the_pieces() {
    let stream =
        b": hello\n\ndata: a\r\ndata:b\r\n\r\nid: 7\n\ndata:\n\nevent: x\ndata: c\n\ndata: end";
    for size in 1..=stream.len() {
        let pieces: Vec<&[u8]> = stream.chunks(size).collect();
        let (events, error) = parse(Parser::new(80), &pieces);
        let texts: Vec<_> =
            events.iter().map(Event::text).filter(|text| !text.is_empty()).collect();
        assert_eq!((&texts[..], error), (&["a\nb".into(), "c".into()][..], None), "{size}");
    }
}

#[test]
fn an_event_without_an_end_is_refused() {
    let mut parser = Parser::new(20);
    for piece in [b"data: 0123\n".as_slice(), b"data: 4567\n"] {
        parser.feed(piece);
        assert_eq!(parser.next_event(), None);
    }
    parser.feed(b"data: 89abcd");
    let refused = parser.next_event().and_then(Result::err).expect("it is too large");
    assert_eq!(refused.to_string(), "an event has more than 20 bytes");
}

proptest! {
    #[test]
    fn events_do_not_depend_on_how_bytes_are_split(
        lines in prop::collection::vec(
            prop_oneof![
                Just(b"data: {\"a\":1}".to_vec()), Just("data:é€𝄞".as_bytes().to_vec()),
                Just(b"event: error".to_vec()), Just(b": ping".to_vec()), Just(Vec::new()),
                Just(b"\xef\xbb\xbfid: 1".to_vec()), Just(b"retry: 10".to_vec()),
                "[a-z:é ]{0,6}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..6),
            ],
            0..12,
        ),
        ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r", "\r\n"]), 12),
        cuts in prop::collection::vec(0..400_usize, 0..20),
        max_bytes in prop::sample::select(vec![8, 20, 1_000]),
    ) {
        let stream: Vec<u8> = lines
            .iter()
            .zip(&ends)
            .flat_map(|(line, end)| [line.as_slice(), end.as_bytes()].concat())
            .collect();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let whole = parse(Parser::new(max_bytes), &[&stream]);
        prop_assert_eq!(parse(Parser::new(max_bytes), &pieces), whole);
    }
}
