//! The text of a remote agent that was published as pieces, so that a repeated stream publishes nothing twice.

/// The published text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublishedText {
    /// The bytes that were published before, whose text is not known any more.
    before: usize,
    /// The text that was published after them.
    text: String,
}

impl PublishedText {
    /// After a question, up to which this many bytes were published.
    pub(crate) fn from(before: usize) -> PublishedText {
        PublishedText { before, text: String::new() }
    }

    /// Returns how many bytes of the whole text were published.
    pub(crate) fn bytes(&self) -> usize {
        self.before + self.text.len()
    }

    /// Returns the piece to publish when the whole text is this. A shorter text is the beginning of a stream that is
    /// repeated.
    ///
    /// # Errors
    /// The whole text, if it differs from what was published.
    pub(crate) fn extend(&mut self, whole: &str) -> Result<Option<String>, String> {
        if whole.len() <= self.bytes() {
            return Ok(None);
        }
        let Some(piece) = whole.get(self.before..).and_then(|new| new.strip_prefix(&self.text))
        else {
            *self = PublishedText { before: 0, text: whole.to_owned() };
            return Err(whole.to_owned());
        };
        self.text.push_str(piece);
        Ok(Some(piece.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_stream_publishes_nothing_twice() {
        let mut published = PublishedText::default();
        let some = |piece: &str| Ok(Some(piece.to_owned()));
        assert_eq!(published.extend("It "), some("It "));
        assert_eq!(published.extend("It is"), some("is"));
        assert_eq!(published.extend(""), Ok(None));
        assert_eq!(published.extend("It "), Ok(None));
        assert_eq!(published.extend("It is 42."), some(" 42."));
        assert_eq!(published.bytes(), 9);
    }

    #[test]
    fn a_text_that_was_replaced_is_published_again() {
        let mut published = PublishedText::default();
        assert_eq!(published.extend("It is 41."), Ok(Some("It is 41.".to_owned())));
        assert_eq!(published.extend("It is not 41."), Err("It is not 41.".to_owned()));
        assert_eq!(published.extend("It is not 41. So"), Ok(Some(" So".to_owned())));
    }

    #[test]
    fn text_published_before_a_question_is_not_repeated() {
        let mut published = PublishedText::from(3);
        assert_eq!(published.extend("It "), Ok(None));
        assert_eq!(published.extend("It is"), Ok(Some("is".to_owned())));
        // A boundary within a character.
        let mut published = PublishedText::from(1);
        assert_eq!(published.extend("äh"), Err("äh".to_owned()));
    }
}
