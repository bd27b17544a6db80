//! Rule: each row of the page of attacks names tests that exist.

use super::finding::Finding;
use super::links::prose;
use super::source::{File, is_word};

/// The page.
const PAGE: &str = "docs/security-tests.md";

pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else { return Vec::new() };
    let rows = prose(&page.text).filter(|(_, line)| line.starts_with("| "));
    let rows = rows.filter(|(_, line)| *line != "| attack | result | test |");
    rows.flat_map(|(at, row)| {
        let problems = in_row(row, files).into_iter();
        problems.map(move |what| Finding::new(format!("{PAGE}:{at}"), what))
    })
    .collect()
}

/// The problems of a row. Its last cell has the path of a file or a folder, and then names of tests in it: in spans of
/// their own, or after `::`. A name can end with `…`.
fn in_row(row: &str, files: &[File]) -> Vec<String> {
    let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
    let mut problems = Vec::new();
    let mut place = None;
    for span in cell.split('`').skip(1).step_by(2) {
        let (path, test) = match span.split_once("::") {
            Some((path, test)) => (Some(path), Some(test)),
            None if span.contains('/') => (Some(span), None),
            None => (None, Some(span)),
        };
        place = path.or(place);
        let Some(place) = place else {
            problems.push(format!("names {span} without a file"));
            continue;
        };
        let stem = place.trim_end_matches(".rs").trim_end_matches('/');
        let inside = || {
            files.iter().filter(|file| {
                file.path == place
                    || file.path.strip_prefix(stem).is_some_and(|rest| rest.starts_with('/'))
            })
        };
        if inside().next().is_none() {
            problems.push(format!("names {place}, which does not exist"));
        } else if let Some(test) = test
            && !inside().any(|file| defines(&file.text, test))
        {
            problems.push(format!("names the test {test}, which {place} does not have"));
        }
    }
    if place.is_none() {
        problems.push("names no test".to_owned());
    }
    problems
}

/// Whether a text defines a test with this name: a function, or a text in TypeScript.
fn defines(text: &str, test: &str) -> bool {
    let name = test.trim_end_matches('…');
    ["fn ", "def ", "def test_", "test(\""].iter().any(|keyword| {
        let definition = format!("{keyword}{name}");
        let mut rests =
            text.match_indices(&definition).map(|(at, _)| &text[at + definition.len()..]);
        rests.any(|rest| name != test || !rest.starts_with(is_word))
    })
}
