//! Rule: no unfinished code, no silenced lints, no tests that sleep.

use super::finding::Finding;
use super::source::{Line, Source, is_word};

/// Markers of unfinished work, in comments or code.
const UNFINISHED: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Code that is not permitted, and the alternative.
const CODE: [(&str, &str); 6] = [
    ("todo!", "finish or remove it"),
    ("unimplemented!", "finish or remove it"),
    ("dbg!", "remove it"),
    ("#[allow(", "use #[expect(…, reason = …)]"),
    ("#![allow(", "use #![expect(…, reason = …)]"),
    ("#[ignore", "a test must run, or report what it leaves out"),
];

/// Uses of such code that are permitted: the end of the path, a part of the line, and the code.
const PERMITTED: [(&str, &str, &str); 2] = [
    // Not a test: libtest starts the process for a test, and shows it as ignored otherwise.
    (".rs", "#[ignore = \"a process that other tests start\"]", "#[ignore"),
    // In generated code: a crate uses only some of the methods, and `expect` would fail in one that uses all of them.
    ("schema/macros/src/reducer.rs", "#[allow(dead_code)]", "#[allow("),
];

/// A comment on the previous line that waives the sleep rule, with its reason.
const WAIVER: &str = "// tidy: ";

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in source.lines.iter().enumerate() {
        let mut found = |what: &str, instead: &str| {
            let place = format!("{}:{}", source.path, at + 1);
            findings.push(Finding::new(place, format!("`{what}`: {instead}")));
        };
        for word in UNFINISHED {
            if has(&line.comment, word, true) || has(&line.code, word, true) {
                found(word, "finish it, or file an issue");
            }
        }
        for (word, instead) in CODE {
            let is_permitted = PERMITTED.iter().any(|(path, text, permitted)| {
                *permitted == word && source.path.ends_with(path) && line.text.contains(text)
            });
            if has(&line.code, word, false) && !is_permitted {
                found(word, instead);
            }
        }
        let waived = at > 0 && is_waived(&source.lines[at - 1]);
        if line.test && sleeps(&line.code) && !waived {
            found(
                "sleep",
                "wait for the expected event, or give a reason above: `// tidy: <reason>`",
            );
        }
    }
    findings
}

/// Whether the text contains the word, not as the end of a longer one; with `whole`, not as the beginning either.
fn has(text: &str, word: &str, whole: bool) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let tail = text[..at].ends_with(is_word);
        let head = whole && text[at + word.len()..].starts_with(is_word);
        !tail && !head
    })
}

/// Matches all spellings: `thread::sleep(…)`, `time::sleep(…)`, a bare `sleep(…)`.
fn sleeps(code: &str) -> bool {
    ["sleep(", "sleep_until("].iter().any(|call| has(code, call, false))
        && !code.contains("fn sleep")
}

fn is_waived(above: &Line) -> bool {
    above.comment.split_once(WAIVER).is_some_and(|(_, reason)| !reason.trim().is_empty())
}
