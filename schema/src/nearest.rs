//! The known name that an unknown one was probably meant to be, for the hint of a refusal.

/// A caller chooses the text, and the comparison takes time in proportion to its length. No name is longer.
const TEXT_BYTES: usize = 64;

/// Returns the known name that is nearest to a text, if one is near enough to be a misspelling of it.
#[must_use]
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
    let (distance, name) =
        known.into_iter().map(|name| (strsim::levenshtein(name, text), name)).min()?;
    (distance <= name.len() / 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_a_misspelling_has_a_nearest_name() {
        let known = ["append_message", "create_session"];
        assert_eq!(nearest("apend_message", known), Some("append_message"));
        assert_eq!(nearest("pay", known), None);
        assert_eq!(nearest("pay", []), None);
    }
}
