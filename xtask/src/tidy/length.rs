//! Rule: limits for the length of functions, files and lines.
//!
//! Functions and files have a ratchet: existing exceptions are listed in `xtask/ratchet.txt` with their length,
//! which may only decrease until they leave the list.

use std::collections::BTreeMap;
use std::fmt;

use super::finding::Finding;
use super::source::{Line, Source, is_word};

/// The list of exceptions: `<lines> <path>` or `<lines> <path> <function>` per line.
pub(crate) const RATCHET: &str = "xtask/ratchet.txt";

const FUNCTION_LINES: usize = 70;
const FILE_LINES: usize = 800;
const LINE_CHARS: usize = 100;

/// A file, or a function in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    path: String,
    function: Option<String>,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => write!(f, "{}: fn {function}", self.path),
            None => f.write_str(&self.path),
        }
    }
}

/// Finds lines whose code exceeds the limit. Comments are not checked (they may have a URL or a table). Neither are
/// the insides of multi-line strings and lines with only a string, which are mostly SQL.
pub(crate) fn check_lines(source: &Source) -> Vec<Finding> {
    let width = |line: &Line| {
        let chars: Vec<_> = line.text.chars().zip(line.comment.chars()).collect();
        let is_code = |(text, comment): &(char, char)| !text.is_whitespace() && *comment == ' ';
        chars.iter().rposition(is_code).map_or(0, |at| at + 1)
    };
    let lines = source.lines.iter().enumerate();
    let is_string = |line: &Line| line.text.trim_start().starts_with('"');
    lines
        .filter(|(_, line)| !line.inside_literal && !is_string(line) && width(line) > LINE_CHARS)
        .map(|(at, line)| {
            let what = format!("{} characters of code; the maximum is {LINE_CHARS}", width(line));
            Finding::new(format!("{}:{}", source.path, at + 1), what)
        })
        .collect()
}

/// Compares the long items with the ratchet, in both directions.
pub(crate) fn check(sources: &[Source], ratchet: &str) -> Vec<Finding> {
    let long = too_long(sources);
    let (recorded, mut findings) = read(ratchet);
    for (item, lines) in &long {
        let what = match recorded.get(item) {
            None => format!("{lines} lines; the maximum is {}: split it", limit(item)),
            Some(was) if lines > was => format!("grew from {was} to {lines} lines: split it"),
            Some(was) if lines < was => format!("shrank to {lines} lines: update {RATCHET}"),
            Some(_) => continue,
        };
        findings.push(Finding::new(item, what));
    }
    let mended = recorded.keys().filter(|item| !long.contains_key(item));
    findings.extend(mended.map(|item| Finding::new(item, format!("remove it from {RATCHET}"))));
    findings
}

fn limit(item: &Item) -> usize {
    if item.function.is_some() { FUNCTION_LINES } else { FILE_LINES }
}

/// All items over the limit. For functions with the same name in one file, the longest counts.
fn too_long(sources: &[Source]) -> BTreeMap<Item, usize> {
    let mut long = BTreeMap::new();
    for source in sources {
        let item = |function| Item { path: source.path.clone(), function };
        let functions =
            functions(source).into_iter().map(|(name, lines)| (item(Some(name)), lines));
        for (item, lines) in functions.chain([(item(None), source.lines.len())]) {
            if lines > limit(&item) {
                let longest: &mut usize = long.entry(item).or_default();
                *longest = lines.max(*longest);
            }
        }
    }
    long
}

/// The entries of the ratchet, and findings for invalid ones.
fn read(ratchet: &str) -> (BTreeMap<Item, usize>, Vec<Finding>) {
    let mut recorded = BTreeMap::new();
    let mut findings = Vec::new();
    for (at, line) in ratchet.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let entry = match words.as_slice() {
            [] => continue,
            [word, ..] if word.starts_with('#') => continue,
            [lines, path] => lines.parse().ok().map(|lines| (lines, *path, None)),
            [lines, path, name] => lines.parse().ok().map(|lines| (lines, *path, Some(*name))),
            _ => None,
        };
        if let Some((lines, path, name)) = entry {
            let item = Item { path: path.to_owned(), function: name.map(str::to_owned) };
            recorded.insert(item, lines);
        } else {
            let what = "is not `<lines> <path>` or `<lines> <path> <function>`";
            findings.push(Finding::new(format!("{RATCHET}:{}", at + 1), what));
        }
    }
    (recorded, findings)
}

/// Name and length of every function with a body, from `fn` to its closing brace.
fn functions(source: &Source) -> Vec<(String, usize)> {
    let code: String = source.lines.iter().flat_map(|line| [line.code.as_str(), "\n"]).collect();
    let mut functions = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let from = &code[at + 3..];
        let is_name = |c: char| is_word(c) || c == '#' || c == '$';
        let name: String = from.chars().take_while(|c| is_name(*c)).collect();
        let inside_word = code[..at].ends_with(is_word);
        if inside_word || name.is_empty() {
            continue;
        }
        if let Some(length) = body_end(from) {
            functions.push((name, from[..length].matches('\n').count() + 1));
        }
    }
    functions
}

/// The end of the body that starts with the first brace outside of parentheses and brackets; `None` if a semicolon
/// comes first.
fn body_end(code: &str) -> Option<usize> {
    let mut round = 0;
    let mut curly = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            '{' => curly += 1,
            '}' => curly -= 1,
            ';' if round == 0 && curly == 0 => return None,
            _ => continue,
        }
        if c == '}' && curly == 0 && round == 0 {
            return Some(at);
        }
    }
    None
}
