//! Which call a part belongs to.
//!
//! The class of these bugs: a part was assigned by its position, so a call lost its arguments to another one. A tool
//! without required parameters then ran with `{}`, also one that must not run twice.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

/// A part: id, index, name, and a piece of the arguments.
type Part<'a> = (&'a str, Option<u64>, &'a str, &'a str);

fn assembled(parts: &[Part<'_>]) -> Result<Vec<ModelCall>, ModelError> {
    let mut calls = OpenCalls::default();
    for (id, index, name, piece) in parts.iter().copied() {
        let arguments = Arguments::Piece(piece.to_owned());
        calls.add_part(CallPart { id, index, name, arguments, ..CallPart::default() })?;
    }
    calls.finish(false)
}

#[track_caller]
fn check(parts: &[Part<'_>], expected: Expect) {
    let shown = match assembled(parts) {
        Ok(calls) => {
            let lines = calls.iter().map(|it| format!("[{}] {} {}", it.id, it.name, it.arguments));
            lines.collect::<Vec<_>>().join("\n")
        }
        Err(error) => format!("{}: {error}", error.kind),
    };
    expected.assert_eq(&shown);
}

#[test]
fn arguments_with_another_index_than_their_head_belong_to_the_call_that_began_last() {
    check(
        &[
            ("a", Some(0), "look", ""),
            ("", Some(0), "", r#"{"place": "attic"}"#),
            ("b", Some(0), "look", ""),
            ("", Some(1), "", r#"{"place": "cellar"}"#),
        ],
        expect![[r#"
            [a] look {"place": "attic"}
            [b] look {"place": "cellar"}"#]],
    );
    // The heads are numbered, and all arguments have the index of the first.
    check(
        &[
            ("a", Some(0), "look", ""),
            ("", Some(0), "", r#"{"place": "attic"}"#),
            ("b", Some(1), "look", ""),
            ("", Some(0), "", r#"{"place":"#),
            ("", Some(0), "", r#" "cellar"}"#),
        ],
        expect![[r#"
            [a] look {"place": "attic"}
            [b] look {"place": "cellar"}"#]],
    );
}

#[test]
fn a_name_after_complete_arguments_begins_a_call() {
    check(
        &[
            ("", Some(0), "look", r#"{"place": "attic"}"#),
            ("", Some(0), "look", r#"{"place": "attic"}"#),
            ("", Some(0), "note", r#"{"text": "x}"}"#),
            ("", None, "note", r#"{"text": "y"}"#),
        ],
        expect![[r#"
            [] look {"place": "attic"}
            [] look {"place": "attic"}
            [] note {"text": "x}"}
            [] note {"text": "y"}"#]],
    );
    check(
        &[("same", Some(0), "look", r#"{"n":1}"#), ("same", Some(1), "look", r#"{"n":1}"#)],
        expect![[r#"[same] look {"n":1}"#]],
    );
}

#[test]
fn repeated_heads_add_nothing() {
    check(
        &[
            ("a", Some(0), "f", ""),
            ("a", Some(0), "f", r#"{"x":"#),
            ("a", None, "f", "1"),
            ("", Some(0), "f", "}"),
            ("a", Some(0), "f", ""),
            ("", Some(0), "f", " "),
            ("a", Some(0), "f", r#"{"x":1}"#),
        ],
        expect![[r#"[a] f {"x":1}"#]],
    );
}

#[test]
fn spaces_stay_with_their_call() {
    check(
        &[
            ("a", Some(0), "f", r#"{"x":1}"#),
            ("b", Some(1), "g", r#"{"y":"so"#),
            ("", Some(0), "", "\n"),
            ("", Some(1), "", " "),
            ("", Some(1), "", r#"far"}"#),
        ],
        expect![[r#"
            [a] f {"x":1}

            [b] g {"y":"so far"}"#]],
    );
}

#[test]
fn a_name_may_follow_its_id() {
    check(
        &[("a", Some(0), "", ""), ("", Some(0), "f", r#"{"x":"#), ("", None, "", "1}")],
        expect![[r#"[a] f {"x":1}"#]],
    );
}

/// A tool must not run with a part of what the model wrote.
#[test]
fn what_does_not_fit_is_not_json() {
    check(
        &[("a", Some(0), "f", r#"{"y":1}"#), ("a", Some(0), "", r#"{"x":1}"#)],
        expect![[r#"[a] f {"y":1}{"x":1}"#]],
    );
    check(
        &[("", Some(0), "", r#"{"x":1}"#)],
        expect![[r#"
        invalid_response: the stream has a tool call without a name"#]],
    );
    check(
        &[("a", Some(3), "", "")],
        expect!["invalid_response: the stream has a tool call without a name"],
    );
    check(&[("", Some(0), "", "")], expect![""]);
}

#[test]
fn the_number_of_calls_is_bounded() {
    let parts: Vec<Part<'_>> = (0..=CALLS_MAX).map(|_| ("", None, "f", "{}")).collect();
    let error = assembled(&parts).expect_err("there are too many");
    assert_eq!(error.message, "the answer has more than 1000 tool calls");
}

/// How a server identifies the parts of its calls.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// The id and the index in each part.
    Full,
    /// The id in each part, and an index that says nothing.
    IdsAndZeros,
    /// The id in the first part, the index in each.
    Usual,
    /// No ids at all.
    IndexesOnly,
    /// Parts follow each other, and only the first of a call has an id.
    FirstIdOnly,
    /// As `FirstIdOnly`, and each part has the same index.
    FirstIdAndZeros,
    /// Parts follow each other, and have a name at most.
    NamesOnly,
    /// As `NamesOnly`, and the index of each part is random: only the first part of a call has a name.
    NamesAndNoise,
}

impl Style {
    const ALL: [Self; 8] = [
        Self::Full,
        Self::IdsAndZeros,
        Self::Usual,
        Self::IndexesOnly,
        Self::FirstIdOnly,
        Self::FirstIdAndZeros,
        Self::NamesOnly,
        Self::NamesAndNoise,
    ];

    /// Whether parts of several calls can be mixed and still be told apart.
    fn can_interleave(self) -> bool {
        matches!(self, Self::Full | Self::IdsAndZeros | Self::Usual | Self::IndexesOnly)
    }

    fn has_ids(self) -> bool {
        !matches!(self, Self::IndexesOnly | Self::NamesOnly | Self::NamesAndNoise)
    }

    fn id(self, id: &str, is_first: bool) -> &str {
        let is_sent = match self {
            Self::Full | Self::IdsAndZeros => true,
            Self::Usual | Self::FirstIdOnly | Self::FirstIdAndZeros => is_first,
            Self::IndexesOnly | Self::NamesOnly | Self::NamesAndNoise => false,
        };
        if is_sent { id } else { "" }
    }

    fn index(self, call: usize, noise: u64) -> Option<u64> {
        match self {
            Self::Full | Self::Usual | Self::IndexesOnly => Some(call as u64),
            Self::IdsAndZeros | Self::FirstIdAndZeros => Some(0),
            Self::FirstIdOnly | Self::NamesOnly => None,
            Self::NamesAndNoise => Some(noise % 3),
        }
    }
}

/// A call, and where its arguments are cut. A head without arguments can come first, and the name can be repeated.
#[derive(Clone, Debug)]
struct SentCall {
    name: &'static str,
    arguments: String,
    cuts: Vec<prop::sample::Index>,
    has_bare_head: bool,
    repeats_name: bool,
}

impl SentCall {
    fn pieces(&self) -> Vec<&str> {
        let mut cuts: Vec<usize> =
            self.cuts.iter().map(|cut| cut.index(self.arguments.len())).collect();
        cuts.retain(|at| self.arguments.is_char_boundary(*at));
        cuts.extend([0, self.arguments.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| &self.arguments[cut[0]..cut[1]]);
        let head = self.has_bare_head.then_some("");
        head.into_iter().chain(pieces).collect()
    }
}

fn sent_calls() -> impl Strategy<Value = Vec<SentCall>> {
    // No spaces: a piece of them with the index of a complete call stays there, see `spaces_stay_with_their_call`.
    let text = prop::sample::select(vec!["", "attic", "a}{b", "\"[{", "é🔑", "\\"]);
    let arguments = prop::collection::vec((prop::sample::select(vec!["x", "y", "z"]), text), 0..3);
    let call = (
        prop::sample::select(vec!["look", "note"]),
        arguments.prop_map(|fields| serde_json::to_string(&fields).expect("it is JSON")),
        prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        any::<bool>(),
        any::<bool>(),
    );
    let call = call.prop_map(|(name, fields, cuts, has_bare_head, repeats_name)| SentCall {
        name,
        arguments: format!(r#"{{"fields":{fields}}}"#),
        cuts,
        has_bare_head,
        repeats_name,
    });
    prop::collection::vec(call, 1..5)
}

proptest! {
    /// The parts of some calls, in every order that keeps those of a call in order, give the same calls. With the ids in
    /// each part, so do the same parts once more.
    #[test]
    fn parts_in_any_order_and_cut_give_the_same_calls(
        style in prop::sample::select(Style::ALL.to_vec()),
        calls in sent_calls(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 60),
        noise in prop::collection::vec(any::<u64>(), 60),
    ) {
        let ids: Vec<String> = (0..calls.len()).map(|at| format!("call_{at}")).collect();
        let mut waiting: Vec<(usize, Vec<&str>)> =
            calls.iter().map(SentCall::pieces).enumerate().collect();
        let mut begun: Vec<usize> = Vec::new();
        let mut parts: Vec<Part<'_>> = Vec::new();
        while !waiting.is_empty() {
            let turn = if style.can_interleave() { order[parts.len() % order.len()].index(waiting.len()) } else { 0 };
            let (at, pieces) = &mut waiting[turn];
            let (at, piece) = (*at, pieces.remove(0));
            if pieces.is_empty() {
                waiting.remove(turn);
            }
            let is_first = !begun.contains(&at);
            if is_first {
                begun.push(at);
            }
            let call = &calls[at];
            let repeats_name = call.repeats_name && !matches!(style, Style::NamesAndNoise);
            let name = if is_first || repeats_name { call.name } else { "" };
            let noise = noise[parts.len() % noise.len()];
            // Without ids and a steady index, an unnamed bare head says nothing that the next one does not say.
            parts.push((style.id(&ids[at], is_first), style.index(at, noise), name, piece));
        }
        let expected: Vec<ModelCall> = begun
            .iter()
            .map(|at| ModelCall {
                id: if style.has_ids() { ids[*at].clone() } else { String::new() },
                name: calls[*at].name.to_owned(),
                arguments: calls[*at].arguments.clone(),
            })
            .collect();
        prop_assert_eq!(&assembled(&parts).expect("each call has a name"), &expected, "{:?}", parts);
        if matches!(style, Style::Full | Style::IdsAndZeros) {
            let twice = [&parts[..], &parts].concat();
            prop_assert_eq!(assembled(&twice).expect("each call has a name"), expected, "{:?}", parts);
        }
    }

    /// No parts cause a panic, and no call has arguments that are JSON and were never sent as such.
    #[test]
    fn any_parts_give_calls_or_an_error(
        parts in prop::collection::vec(
            (
                prop::sample::select(vec!["", "a", "b"]),
                prop::option::of(0_u64..3),
                prop::sample::select(vec!["", "f", "g"]),
                prop::sample::select(vec!["", "{", "}", "{}", "\"", "\\", "{\"x\":", "1}", " "]),
            ),
            0..12,
        ),
    ) {
        let sent: String = parts.iter().map(|(.., piece)| *piece).collect();
        if let Ok(calls) = assembled(&parts) {
            let received: usize = calls.iter().map(|call| call.arguments.len()).sum();
            prop_assert!(received <= sent.len());
            prop_assert!(calls.iter().all(|call| !call.name.is_empty()));
        }
    }
}
