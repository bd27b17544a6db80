//! Rule: every event of the log at INFO or above has a stable name, and `docs/logs.md` lists it with its level and fields.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{File, Line, Source};

/// The page that lists the events.
const PAGE: &str = "docs/logs.md";

/// Crates whose events are in logs of users.
const SHIPPED: [&str; 5] = ["agent/", "cli/src/", "client-sdk/rust/src/", "engine/", "server/"];

/// The macros, with the level of the page.
const MACROS: [(&str, &str); 3] =
    [("tracing::error!(", "ERROR"), ("tracing::warn!(", "WARN"), ("tracing::info!(", "INFO")];

/// An event, as the code writes it or as the page describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogEvent {
    levels: BTreeSet<String>,
    fields: BTreeSet<String>,
}

/// The events of all files, by name.
pub(crate) type LogEvents = BTreeMap<String, LogEvent>;

/// Adds the events of a file. Returns those without a name.
pub(crate) fn collect(source: &Source, events: &mut LogEvents) -> Vec<Finding> {
    if !SHIPPED.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let lines = lines_of_program(source);
    let code: Vec<char> = lines.iter().flat_map(|it| it.code.chars().chain(['\n'])).collect();
    let text: Vec<char> = lines.iter().flat_map(|it| it.text.chars().chain(['\n'])).collect();
    let searched: String = code.iter().collect();
    let mut findings = Vec::new();
    for (name, level) in MACROS {
        for (at, _) in searched.match_indices(name) {
            let start = searched[..at].chars().count() + name.len();
            let arguments = arguments(&code[start..], &text[start..]);
            let event = arguments.first().and_then(|first| first.strip_prefix("name: \""));
            let Some(event) = event.and_then(|name| name.strip_suffix('"')) else {
                let line = code[..start].iter().filter(|c| **c == '\n').count() + 1;
                let why = format!(
                    "an event of the log has no name: begin with `name: \"…\"`, and list it in {PAGE}"
                );
                findings.push(Finding::new(format!("{}:{line}", source.path), why));
                continue;
            };
            let entry = events.entry(event.to_owned()).or_default();
            entry.levels.insert(level.to_owned());
            let fields = arguments[1..].iter().take_while(|argument| !argument.starts_with('"'));
            entry.fields.extend(fields.map(|field| field_name(field)));
        }
    }
    findings
}

/// Returns the lines before the tests. A function alone that is only for tests does not begin them.
fn lines_of_program(source: &Source) -> &[Line] {
    if source.path.split('/').any(|part| part == "tests" || part == "tests.rs") {
        return &[];
    }
    let is_test_module = |pair: &[Line]| {
        pair[0].code.contains("#[cfg(test)]") && pair[1].code.trim_start().starts_with("mod ")
    };
    let is_inline = |pair: &[Line]| pair[1].code.contains('{');
    let tests = source.lines.windows(2).position(|pair| is_test_module(pair) && is_inline(pair));
    &source.lines[..tests.unwrap_or(source.lines.len())]
}

/// Returns the arguments of a macro, of which `code` and `text` have what follows its parenthesis. Literals are blank in `code`.
fn arguments(code: &[char], text: &[char]) -> Vec<String> {
    let mut depth = 0;
    let mut start = 0;
    let mut all = Vec::new();
    for (at, c) in code.iter().enumerate() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' | ',' if depth == 0 => {
                let argument: String = text[start..at].iter().collect();
                all.push(argument.trim().to_owned());
                start = at + 1;
                if *c == ')' {
                    break;
                }
            }
            _ => {}
        }
    }
    all.retain(|argument| !argument.is_empty());
    all
}

/// Returns the name of a field: `error` of `%error`, `run` of `run = state.run.id`.
fn field_name(argument: &str) -> String {
    let name = argument.split('=').next().unwrap_or_default();
    name.trim().trim_start_matches(['%', '?']).to_owned()
}

/// Compares the events with the page.
pub(crate) fn check_page(file: &File, events: &LogEvents) -> Vec<Finding> {
    if file.path != PAGE {
        return Vec::new();
    }
    let table = file.text.split("\n## All events\n").nth(1).unwrap_or_default();
    let listed: LogEvents = table.lines().filter_map(read_row).collect();
    let names: BTreeSet<&String> = events.keys().chain(listed.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| {
            let why = match (events.get(name), listed.get(name)) {
                (Some(written), Some(listed)) if written == listed => return None,
                (Some(written), Some(_)) => format!("the event {name} is {}", describe(written)),
                (Some(written), None) => {
                    format!("the event {name} is missing: {}", describe(written))
                }
                (None, _) => format!("no code writes the event {name}"),
            };
            Some(Finding::new(PAGE, why))
        })
        .collect()
}

/// Reads a row of the table: name, level, fields, message.
fn read_row(line: &str) -> Option<(String, LogEvent)> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
    let [name, levels, fields, ..] = cells[..] else { return None };
    let list = |cell: &str| -> BTreeSet<String> {
        let items = cell.split(',').map(|item| item.trim().trim_matches('`').to_owned());
        items.filter(|item| !item.is_empty()).collect()
    };
    let event = LogEvent { levels: list(levels), fields: list(fields) };
    Some((name.trim_end_matches('`').to_owned(), event))
}

/// The cells of a row.
fn describe(event: &LogEvent) -> String {
    let join = |all: &BTreeSet<String>| all.iter().cloned().collect::<Vec<_>>().join(", ");
    format!("`{}` with the fields `{}`", join(&event.levels), join(&event.fields))
}
