//! JSON in the text of a model: the whole text, in a code fence, or in the middle of prose.

#[cfg(test)]
mod tests;

use serde_json::Value;

/// A JSON value in a text.
#[derive(Debug, PartialEq)]
pub(crate) struct EmbeddedJson<'a> {
    pub(crate) value: Value,
    /// The part of the text that was read.
    pub(crate) source: &'a str,
}

/// Returns the JSON values in a text, in order.
///
/// If the text is JSON, that is the only value. Otherwise these are the objects and arrays in it, and any value that
/// fills a code fence. A value inside another one is not a value of the text.
pub(crate) fn find(text: &str) -> Vec<EmbeddedJson<'_>> {
    let text = text.trim();
    if let Ok(value) = serde_json::from_str(text) {
        return vec![EmbeddedJson { value, source: text }];
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find(['{', '[', '`']) {
        at += next;
        let rest = &text[at..];
        let (read, end) = match rest.strip_prefix(FENCE) {
            Some(fenced) => (in_fence(fenced), at + FENCE.len()),
            None if rest.starts_with('`') => (None, at + 1),
            // serde_json limits the depth, so a text of brackets that never close costs little.
            None => (at_start(rest), at + 1),
        };
        at = match &read {
            Some(json) => offset_in(text, json.source) + json.source.len(),
            None => end,
        };
        found.extend(read);
    }
    found
}

const FENCE: &str = "```";

/// Reads the value that fills a code fence. `text` begins after the opening fence, with the name of a language.
fn in_fence(text: &str) -> Option<EmbeddedJson<'_>> {
    let (language, content) = text.split_once('\n')?;
    if !language.trim().chars().all(char::is_alphanumeric) {
        return None;
    }
    let read = at_start(content.trim_start())?;
    let after = &text[offset_in(text, read.source) + read.source.len()..];
    after.trim_start().starts_with(FENCE).then_some(read)
}

/// Reads the value at the start of a text, whatever follows it.
fn at_start(text: &str) -> Option<EmbeddedJson<'_>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some(EmbeddedJson { value, source: &text[..values.byte_offset()] })
}

/// Returns where a part of a text begins.
fn offset_in(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}
