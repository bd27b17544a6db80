//! `abide.toml` as it is written: its keys with their lines and values, before they are compared with the options.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::Problem;
use crate::text_file::TextFile;

/// The file that is read if none is named, in the current folder.
pub(super) const DEFAULT_FILE: &str = "abide.toml";

/// The variable that names another file.
const VARIABLE: &str = "ABIDE_CONFIG";

/// The name of no file, for a command that ignores the one in the current folder.
const NO_FILE: &str = "/dev/null";

/// Maximum bytes of a file: many times more than all keys have.
const MAX_BYTES: u64 = 64 << 10;

/// A file of configuration.
#[derive(Debug)]
pub(super) struct ConfigFile {
    /// Where it is.
    pub(super) path: PathBuf,
    /// Its keys, in order.
    pub(super) entries: Vec<Entry>,
    /// Its tables.
    pub(super) sections: Vec<Section>,
}

/// A key and its value.
#[derive(Debug)]
pub(super) struct Entry {
    /// The table, such as `agent`, `run`; empty for a key at the top.
    pub(super) section: Vec<String>,
    /// The key in its table.
    pub(super) key: String,
    pub(super) value: Value,
    /// The line, from 1.
    pub(super) line: usize,
}

impl Entry {
    /// The whole name, such as `serve.listen`.
    pub(super) fn name(&self) -> String {
        join(&self.section, &self.key)
    }
}

/// A table.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
}

/// The value of a key.
#[derive(Debug)]
pub(super) enum Value {
    Flag(bool),
    /// A text or a whole number.
    One(String),
    /// A list of texts.
    Many(Vec<String>),
    /// A value that no option has, with the name of its type.
    Other(&'static str),
}

/// The name of a key in a table.
pub(super) fn join(section: &[String], key: &str) -> String {
    let words = section.iter().map(String::as_str).chain([key]);
    words.collect::<Vec<_>>().join(".")
}

impl ConfigFile {
    /// Returns a line of the file, as messages name it.
    pub(super) fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    /// Reads the file that the command line or the environment names, or the one in the current folder; `None` if there
    /// is none.
    ///
    /// # Errors
    /// It cannot be read, is not TOML, or is of another user and was not named.
    pub(super) fn find(words: &[OsString]) -> Result<Option<ConfigFile>, Problem> {
        let variable = env::var_os(VARIABLE).filter(|value| !value.is_empty());
        let (path, source) = match (typed_path(words), variable) {
            (Some(path), _) => (path, "--config"),
            (None, Some(path)) => (PathBuf::from(path), VARIABLE),
            (None, None) => (PathBuf::from(DEFAULT_FILE), ""),
        };
        let is_named = !source.is_empty();
        if path == Path::new(NO_FILE) {
            return Ok(None);
        }
        if !is_named && fs::symlink_metadata(&path).is_err() {
            return Ok(None);
        }
        let place = path.display().to_string();
        let file = TextFile::read(&path, MAX_BYTES).map_err(|why| {
            let hint = if is_named {
                format!("check the path and its permissions: {source} names the file")
            } else {
                "correct the file, or name another one with --config".to_owned()
            };
            Problem::new(place.clone(), format!("the configuration cannot be read: {why}"), hint)
        })?;
        if !is_named && !file.is_trusted() {
            let what = "the file is not read: another user owns it or can write it";
            let hint = format!("if you trust it, name it: --config {DEFAULT_FILE}");
            return Err(Problem::new(place, what, hint));
        }
        parse(path, &file.text).map(Some)
    }
}

/// The value of `--config` on a command line, in the forms that the parser accepts. It is needed before the parser runs:
/// the file has the defaults.
fn typed_path(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.as_bytes().strip_prefix(b"--config=") {
            return Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    None
}

fn parse(path: PathBuf, text: &str) -> Result<ConfigFile, Problem> {
    // Editors of some systems write it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let table = DeTable::parse(text).map_err(|why| {
        let line = why.span().map_or(1, |span| line_at(text, span.start));
        let reason = why.message().lines().next().unwrap_or_default().to_owned();
        let place = format!("{}:{line}", path.display());
        let hint = "a line is  key = \"text\",  key = 1,  key = true,  key = [\"a\", \"b\"]  or  [command]";
        Problem::new(place, format!("the file is not TOML: {reason}"), hint)
    })?;
    let mut file = ConfigFile { path, entries: Vec::new(), sections: Vec::new() };
    collect(text, &mut Vec::new(), table.get_ref(), &mut file);
    // Tables are sorted by name.
    file.entries.sort_by_key(|entry| entry.line);
    file.sections.sort_by_key(|section| section.line);
    Ok(file)
}

/// Adds the keys and tables of a table. The parser limits how deep they are.
fn collect(text: &str, section: &mut Vec<String>, table: &DeTable<'_>, file: &mut ConfigFile) {
    for (key, value) in table.iter() {
        let line = line_at(text, key.span().start);
        let key = key.get_ref().to_string();
        if let DeValue::Table(below) = value.get_ref() {
            section.push(key);
            file.sections.push(Section { path: section.clone(), line });
            collect(text, section, below, file);
            section.pop();
        } else {
            let value = convert(value);
            file.entries.push(Entry { section: section.clone(), key, value, line });
        }
    }
}

fn convert(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Array(items) => {
            let texts = items.iter().map(|item| match item.get_ref() {
                DeValue::String(text) => Some(text.to_string()),
                _ => None,
            });
            texts
                .collect::<Option<Vec<String>>>()
                .map_or(Value::Other("a list of other values"), Value::Many)
        }
        value => match to_text(value) {
            Some(text) => Value::One(text),
            None => Value::Other(value.type_str()),
        },
    }
}

fn to_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(to_decimal(number)),
        _ => None,
    }
}

/// A whole number as options have it: TOML also has hexadecimal, octal and binary numbers.
fn to_decimal(number: &DeInteger<'_>) -> String {
    match i128::from_str_radix(&number.as_str().replace('_', ""), number.radix()) {
        Ok(decimal) => decimal.to_string(),
        Err(_) => number.to_string(),
    }
}

fn line_at(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<String> {
        let file = parse(PathBuf::from(DEFAULT_FILE), text).expect("it is TOML");
        let lines = file.entries.iter().map(|entry| {
            let Entry { line, value, .. } = entry;
            format!("{line} {} {value:?}", entry.name())
        });
        lines.collect()
    }

    #[test]
    fn keys_have_names_lines_and_values() {
        let text = "\u{feff}db = \"a.db\"\n\n[serve]\nretention-events = 1_000\n\
                    webhook-allow-private = [\"a\", \"b\"]\n[agent.run]\nyes = true\nx = 1.5\ny = [1, \"a\"]\n";
        assert_eq!(
            entries(text),
            [
                "1 db One(\"a.db\")",
                "4 serve.retention-events One(\"1000\")",
                "5 serve.webhook-allow-private Many([\"a\", \"b\"])",
                "7 agent.run.yes Flag(true)",
                "8 agent.run.x Other(\"float\")",
                "9 agent.run.y Other(\"a list of other values\")",
            ]
        );
    }

    #[test]
    fn the_file_is_named_as_the_parser_reads_it() {
        for (line, path) in [
            ("abide --config a.toml sql x", Some("a.toml")),
            ("abide sql x --config=b.toml", Some("b.toml")),
            ("abide sql x", None),
            ("abide agent run a -- --config", None),
            ("abide --config", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(typed_path(&words).as_deref(), path.map(Path::new), "{line}");
        }
        // A file with such a name was not read, and nobody was told.
        let no_text = OsStr::from_bytes(b"--config=a\xff.toml").to_owned();
        let path = typed_path(&["abide".into(), no_text]);
        assert_eq!(path.as_deref(), Some(Path::new(OsStr::from_bytes(b"a\xff.toml"))));
    }
}
