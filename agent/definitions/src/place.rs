//! The place in a file that an error concerns: that of the parser, or that of the words that are wrong.

use abide_yaml::Document;

use crate::error::{DefinitionError, InvalidSetting, Position};

impl DefinitionError {
    /// Returns the place in the text of the file, if it is known.
    pub fn place_in(&self, text: &str) -> Option<Position> {
        match self {
            DefinitionError::Malformed { at, .. } => *at,
            DefinitionError::Setting(InvalidSetting { setting, .. }) => {
                position_of_setting(text, setting)
            }
            DefinitionError::Cycle(names) => {
                let next = names.get(1)?;
                // An inline subagent is named without its parent.
                let next = next.rsplit('/').next().unwrap_or(next);
                let list = find_key(text, 0, "subagents")?;
                let name = find(text, list, next, &|before, after| {
                    is_whole(before) && !after.starts_with(is_part)
                });
                Some(position_at(text, name.unwrap_or(list)))
            }
            DefinitionError::Config { subject, .. } => {
                position_of_entry(text, subject).or_else(|| position_of(text, subject))
            }
            _ => self.subjects().into_iter().find_map(|word| position_of(text, word)),
        }
    }
}

/// Returns the first place of a word, outside of comments; otherwise that of a word next to a slash, such as the model
/// or the provider of `provider/model`.
fn position_of(text: &str, word: &str) -> Option<Position> {
    let found = find(text, 0, word, &|before, after| is_whole(before) && ends_word(after))
        .or_else(|| find(text, 0, word, &|before, after| before.ends_with('/') && ends_word(after)))
        .or_else(|| {
            find(text, 0, word, &|before, after| is_whole(before) && after.starts_with('/'))
        })?;
    Some(position_at(text, found))
}

/// Returns the place of the provider, tool or server with an id or a name. Other parts of the file can have the same
/// word: the default of the models names a provider before it is defined.
fn position_of_entry(text: &str, word: &str) -> Option<Position> {
    Document::parse(text).ok()?.position_of_field(&["id", "name"], word)
}

/// Returns the place of a setting, such as `profile.context.chunk_tokens`. A setting that the file does not have has
/// the place of the section that it belongs to.
fn position_of_setting(text: &str, setting: &str) -> Option<Position> {
    let mut found = None;
    for key in setting.split('.') {
        match find_key(text, found.map_or(0, |at| at + 1), key) {
            Some(at) => found = Some(at),
            None => break,
        }
    }
    found.map(|at| position_at(text, at))
}

/// Returns the byte at which a key of a map begins, at this byte or after it. A key at the beginning of a line comes
/// first if the search begins with the text.
fn find_key(text: &str, from: usize, key: &str) -> Option<usize> {
    let outer = (from == 0)
        .then(|| find(text, 0, key, &|before, after| before.is_empty() && follows_key(after)));
    outer
        .flatten()
        .or_else(|| find(text, from, key, &|before, after| is_whole(before) && follows_key(after)))
}

/// Returns the first byte of a word, at this byte or after it, whose surroundings in its line fit. Comments are
/// skipped.
fn find(text: &str, from: usize, word: &str, fits: &dyn Fn(&str, &str) -> bool) -> Option<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let line_start = start;
        start += line.len();
        if line.trim_start().starts_with('#') {
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default();
        let mut found = line.match_indices(word).map(|(at, _)| at);
        let is_wanted =
            |at: &usize| line_start + at >= from && fits(&line[..*at], &line[at + word.len()..]);
        if let Some(at) = found.find(is_wanted) {
            return Some(line_start + at);
        }
    }
    None
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "_-./*".contains(c)
}

fn is_whole(before: &str) -> bool {
    !before.ends_with(is_part)
}

fn ends_word(after: &str) -> bool {
    !after.starts_with(is_part)
}

/// Returns `true` if a text begins like what follows the key of a map: with a colon, after the quote of the key.
fn follows_key(after: &str) -> bool {
    after.trim_start_matches(['"', '\'']).trim_start().starts_with(':')
}

/// Returns the place of a byte that begins a character.
fn position_at(text: &str, at: usize) -> Position {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    Position {
        line: from_one(before.matches('\n').count()),
        column: from_one(before[line_start..].chars().count()),
    }
}

/// Converts a number that counts from 0 to one that counts from 1.
fn from_one(count: usize) -> u64 {
    u64::try_from(count + 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
