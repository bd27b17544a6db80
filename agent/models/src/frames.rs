//! Splits bytes into frames: server-sent events, or lines of JSON.
//!
//! This module does not interpret frames. Of an event's name it only keeps whether it is `error`: in every supported
//! protocol the data repeats the others. Events whose data only keeps the connection open are left out. An event that is
//! truncated by the end of the stream is returned too, because some servers omit the last empty line. The decoder
//! decides whether it is valid.

use std::borrow::Cow;

use abide_sse::{Event, Lines, Parser};

use crate::ModelError;

/// Maximum size of a frame, in bytes. Responses repeats the whole answer in its last event, so this must be larger
/// than any answer.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// Maximum size of a stream, in bytes. Frames add much overhead to each token.
const STREAM_BYTES_MAX: usize = 256 << 20;

/// How frames are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON text per line.
    Lines,
}

/// A frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) data: &'a str,
    /// The event, or a field of it, is named `error`.
    pub(crate) is_error: bool,
}

/// Splits a stream into frames.
#[derive(Debug)]
pub(crate) struct Frames {
    splitter: Splitter,
    /// The size of the stream so far.
    bytes: usize,
    frame_bytes_max: usize,
    stream_bytes_max: usize,
}

#[derive(Debug)]
enum Splitter {
    Events(Parser),
    Lines(Lines),
}

impl Frames {
    pub(crate) fn new(framing: Framing) -> Frames {
        Frames::with_limits(framing, FRAME_BYTES_MAX, STREAM_BYTES_MAX)
    }

    fn with_limits(framing: Framing, frame_bytes_max: usize, stream_bytes_max: usize) -> Frames {
        let splitter = match framing {
            Framing::Events => Splitter::Events(Parser::new(frame_bytes_max)),
            Framing::Lines => Splitter::Lines(Lines::default()),
        };
        Frames { splitter, bytes: 0, frame_bytes_max, stream_bytes_max }
    }

    /// Adds bytes. `each` is called for every completed frame, until it returns an error.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Frame<'_>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        self.bytes += bytes.len();
        if self.bytes > self.stream_bytes_max {
            return Err(too_long("the stream", self.stream_bytes_max));
        }
        match &mut self.splitter {
            Splitter::Events(parser) => {
                parser.feed(bytes);
                take_events(parser, &mut each)
            }
            Splitter::Lines(lines) => {
                let max = self.frame_bytes_max;
                while let Some(line) = lines
                    .next_line(&mut bytes, max)
                    .map_err(|_| too_long("an event of the stream", max))?
                {
                    take_line(line, &mut each)?;
                }
                Ok(())
            }
        }
    }

    /// Ends the stream. An incomplete last line or event counts.
    pub(crate) fn finish(
        &mut self,
        mut each: impl FnMut(Frame<'_>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        match &mut self.splitter {
            Splitter::Events(parser) => {
                parser.finish();
                take_events(parser, &mut each)
            }
            Splitter::Lines(lines) => {
                lines.finish().map_or(Ok(()), |line| take_line(line, &mut each))
            }
        }
    }
}

/// Calls `each` for the events that the parser has completed.
fn take_events(
    parser: &mut Parser,
    each: &mut impl FnMut(Frame<'_>) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    while let Some(event) = parser.next_event() {
        let Event { event: name, data, error, .. } =
            event.map_err(|error| too_long("an event of the stream", error.max_bytes))?;
        // llama.cpp reports an error in a field of this name.
        let is_error = error.is_some() || name.is_some_and(|name| name.trim() == "error");
        let Some(data) = error.or(data) else { continue };
        let data = decode_text(&data);
        if is_error || !is_keepalive(&data) {
            each(Frame { data: &data, is_error })?;
        }
    }
    Ok(())
}

fn take_line(
    line: &[u8],
    each: &mut impl FnMut(Frame<'_>) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let text = decode_text(line);
    let data = text.trim();
    if data.is_empty() { Ok(()) } else { each(Frame { data, is_error: false }) }
}

/// Returns whether the data of an event only keeps the connection open: it is empty, a comment, or a word like `[PING]`.
fn is_keepalive(data: &str) -> bool {
    let data = data.trim();
    let word = data.trim_matches(['[', ']']).to_ascii_lowercase();
    data.is_empty()
        || data.starts_with(':')
        || matches!(word.as_str(), "ping" | "heartbeat" | "keepalive" | "keep-alive")
}

/// Returns bytes as text. Invalid UTF-8 becomes the escape of half a surrogate pair and has the same effect as one:
/// U+FFFD in the text of an answer, an error in the arguments of a call.
fn decode_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push_str("\\udfff");
        }
    }
    Cow::Owned(text)
}

fn too_long(what: &str, max: usize) -> ModelError {
    ModelError::invalid_response(format!("{what} is longer than {} MiB", max >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    /// The frames of a stream that is split into these pieces.
    fn frames(framing: Framing, pieces: &[&[u8]]) -> (Vec<String>, Result<(), ModelError>) {
        read(Frames::new(framing), pieces)
    }

    fn describe(frame: Frame<'_>) -> String {
        format!("{}{}", if frame.is_error { "! " } else { "" }, frame.data)
    }

    fn read(mut frames: Frames, pieces: &[&[u8]]) -> (Vec<String>, Result<(), ModelError>) {
        let mut frames_read = Vec::new();
        for piece in pieces {
            let each = |frame: Frame<'_>| {
                frames_read.push(describe(frame));
                Ok(())
            };
            if let Err(error) = frames.feed(piece, each) {
                return (frames_read, Err(error));
            }
        }
        let end = frames.finish(|frame| {
            frames_read.push(describe(frame));
            Ok(())
        });
        (frames_read, end)
    }

    fn check(framing: Framing, stream: &[u8], expected: Expect) {
        let (frames_read, end) = frames(framing, &[stream]);
        let error = end.err().map(|error| format!(" ! {error}")).unwrap_or_default();
        expected.assert_eq(&format!("{frames_read:?}{error}"));
    }

    #[test]
    fn an_event_yields_its_data() {
        let stream =
            b"\xef\xbb\xbfevent: a\r\ndata: one\r\ndata:two\r\n\r\n: still there\n\nid: 3\n\n\
            data: three\rdata:  \xc3\xa9\r\rdata\n\ndata: cut";
        let expected = expect![[r#"["one\ntwo", "three\n é", "cut"]"#]];
        check(Framing::Events, stream, expected);
    }

    #[test]
    fn each_line_is_a_frame() {
        check(Framing::Lines, b"{}\r\n\n  \n{ }\n{", expect![[r#"["{}", "{ }", "{"]"#]]);
    }

    /// Regression: one invalid byte cost the answer.
    #[test]
    fn invalid_utf8_is_half_a_surrogate_pair() {
        check(Framing::Events, b": \xff\n\ndata: a\n\n", expect![[r#"["a"]"#]]);
        let stream = b"data: a\n\ndata: \"\xff\xc3\xa9\xe2\x82\"\n\n";
        check(Framing::Events, stream, expect![[r#"["a", "\"\\udfffé\\udfff\""]"#]]);
        check(Framing::Lines, b"a\n\xe2\x82", expect![[r#"["a", "\\udfff"]"#]]);
    }

    #[test]
    fn an_event_can_be_named_error() {
        let stream =
            b"event: error\ndata: a\n\ndata: b\n\ndata: c\nevent:error\n\nevent: e\ndata: d";
        check(Framing::Events, stream, expect![[r#"["! a", "b", "! c", "d"]"#]]);
    }

    #[test]
    fn frames_and_streams_have_size_limits() {
        fn count(pieces: &[&[u8]]) -> (usize, Option<String>) {
            let limited = Frames::with_limits(Framing::Events, 2 << 20, 5 << 20);
            let (frames_read, end) = read(limited, pieces);
            (frames_read.len(), end.err().map(|error| error.message))
        }
        let half = vec![b'x'; (1 << 20) + 1];
        let error = || Some("an event of the stream is longer than 2 MiB".to_owned());
        assert_eq!(count(&[b"data: a\n\ndata:", &half, &half]), (1, error()));
        assert_eq!(count(&[b"data:", &half, b"\ndata:", &half]), (0, error()));
        assert_eq!(count(&[b"data:", &half, b"\n\ndata:", &half]), (2, None));
        let error = Some("the stream is longer than 5 MiB".to_owned());
        let comment = [b":", &half[..], b"\n"].concat();
        assert_eq!(count(&[&comment, &comment, &comment, &comment, &comment]), (0, error));
    }

    /// The class: an event that only keeps the connection open was an invalid event, and a field `error` was ignored.
    #[test]
    fn events_without_data_and_fields_named_error() {
        let stream = b"data:\n\ndata: \n\nevent: ping\ndata:\n\ndata: [PING]\n\ndata: : OPENROUTER PROCESSING\n\n\
            event: heartbeat\ndata: ping\n\ndata: .\n\nevent: error\ndata:\n\nerror: {\"code\":500}\n\ndata: a\n\n";
        let (frames, end) = frames(Framing::Events, &[stream]);
        assert_eq!(frames, [".", "! ", "! {\"code\":500}", "a"]);
        assert_eq!(end, Ok(()));
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_how_bytes_are_split(
            lines in prop::collection::vec(
                prop_oneof![
                    Just("data: {\"a\":1}".to_owned()), Just("data:é€𝄞".to_owned()),
                    Just("event: error".to_owned()), Just(": ping".to_owned()), Just(String::new()),
                    "[a-z:é ]{0,6}",
                ],
                0..12,
            ),
            ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r", "\r\n"]), 12),
            cuts in prop::collection::vec(0..400_usize, 0..20),
            framing in prop::sample::select(vec![Framing::Events, Framing::Lines]),
        ) {
            let stream: String =
                lines.iter().zip(&ends).flat_map(|(line, end)| [line.as_str(), end]).collect();
            let stream = stream.as_bytes();
            let mut at: Vec<usize> = cuts.into_iter().map(|at| at.min(stream.len())).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(frames(framing, &pieces), frames(framing, &[stream]));
        }
    }
}
