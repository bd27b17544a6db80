//! Rule: comments, messages and pages are in plain technical English. `CONTRIBUTING.md` describes the style; this rule
//! finds the words that are most often used against it.

use super::finding::Finding;
use super::links::prose;
use super::source::File;
use super::source::{Source, is_word};

/// Words that are not used, in lower case, and the alternative.
const WORDS: [(&str, &str); 17] = [
    ("nobody", "name the caller, the client or the process"),
    ("somebody", "name the caller, the client or the process"),
    ("everybody", "name the callers"),
    ("anybody", "name the callers"),
    ("whoever", "a caller that …"),
    ("himself", "itself"),
    ("herself", "itself"),
    ("told", "receives, reports, shows"),
    ("tells", "receives, reports, shows"),
    ("in earnest", "remove it"),
    ("of its own accord", "automatically"),
    ("as it stands", "current, unchanged"),
    ("one's own", "the caller's own"),
    ("is taken for", "is treated as"),
    ("lets go of", "releases"),
    ("makes sure of", "checks"),
    ("at the door", "name the check"),
];

/// Words that follow `, also` in a clause at the end of a sentence.
const POSTPOSED: [&str; 10] =
    ["if", "when", "after", "while", "for", "of", "by", "from", "in", "on"];

/// Headings of rustdoc. Their text begins on the next line.
const HEADINGS: [&str; 3] = ["# Errors ", "# Panics ", "# Safety "];

/// Words after `The same` in a doc comment that means nothing without its neighbour.
const LEANING: [&str; 15] = [
    "", "as", "at", "but", "during", "for", "from", "if", "in", "of", "on", "through", "when",
    "with", "without",
];

/// Texts that stay as they are: stored in logs, or the name of a recorded file.
const KEPT: [&str; 5] = [
    "nobody answered in time",
    "nobody decided in time",
    "nobody wants the run any more",
    "what a run has told stands",
    "told.jsonl",
];

/// The rule and its test.
const OWN: [&str; 2] = ["xtask/src/tidy/language.rs", "xtask/src/tidy/tests.rs"];

/// Checks the comments and literals of a Rust file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if OWN.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let lines = source.lines.iter().enumerate().map(|(at, line)| {
        let chars = line.text.chars().zip(line.code.chars());
        (at + 1, chars.map(|(c, code)| if code == ' ' { c } else { ' ' }).collect::<String>())
    });
    let mut findings = in_lines(&source.path, lines);
    for (at, line) in source.lines.iter().enumerate() {
        let comment = line.text.trim_start();
        let comment = comment.strip_prefix("/// ").or_else(|| comment.strip_prefix("//! "));
        if comment.is_some_and(|text| HEADINGS.iter().any(|heading| text.starts_with(heading))) {
            let place = format!("{}:{}", source.path, at + 1);
            findings.push(Finding::new(place, "a heading has text on its line"));
        }
        let begins = at == 0 || !source.lines[at - 1].text.trim_start().starts_with("///");
        if begins && comment.is_some_and(leans) {
            let place = format!("{}:{}", source.path, at + 1);
            findings.push(Finding::new(place, "the comment needs its neighbour: repeat the noun"));
        }
    }
    findings
}

/// Whether a doc comment begins with a reference to the item above it, which rustdoc and a hover do not show.
fn leans(comment: &str) -> bool {
    if let Some(rest) = comment.strip_prefix("The same") {
        let word = rest.trim_start().split([' ', ',', ';', '.', ':']).next().unwrap_or_default();
        return LEANING.contains(&word);
    }
    ["Those ", "That ", "Likewise"].iter().any(|word| comment.starts_with(word))
}

/// Checks a Markdown page, without its code.
pub(crate) fn check_page(file: &File) -> Vec<Finding> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let plain = |line: &str| line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    in_lines(&file.path, prose(&file.text).map(|(at, line)| (at, plain(line))))
}

fn in_lines(path: &str, lines: impl Iterator<Item = (usize, String)>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in lines {
        let line = KEPT.iter().fold(line.to_lowercase(), |line, kept| line.replace(kept, ""));
        for (word, instead) in WORDS.iter().filter(|(word, _)| has(&line, word)) {
            findings.push(Finding::new(format!("{path}:{at}"), format!("`{word}`: {instead}")));
        }
        for word in POSTPOSED {
            let clause = format!(", also {word}");
            let mut after = line.match_indices(&clause).map(|(at, _)| &line[at + clause.len()..]);
            if after.any(|rest| !rest.starts_with(is_word)) {
                let message = format!("`{clause}`: even {word}, including");
                findings.push(Finding::new(format!("{path}:{at}"), message));
            }
        }
    }
    findings
}

/// Whether the text has the word by itself: not within a longer one, and not as a name (`{told}`).
fn has(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let in_name = |c: char| is_word(c) || c == '{' || c == '`';
        !text[..at].ends_with(in_name) && !text[at + word.len()..].starts_with(is_word)
    })
}
