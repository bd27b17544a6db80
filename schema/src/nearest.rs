//! The known name that an unknown one was probably meant to be, for the hint of a refusal.

/// The known name that is nearest to a text, if one is near enough to be a misspelling of it.
#[must_use]
pub fn nearest<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.into_iter().map(|name| (distance(name, text), name)).min()?;
    (distance <= name.len() / 3).then_some(name)
}

/// Levenshtein's edit distance between two short names.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(64).collect();
    let mut costs: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = costs[0];
        costs[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = costs[j + 1];
            costs[j + 1] = replaced.min(diagonal + 1).min(costs[j] + 1);
        }
    }
    costs[right.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn the_distance_of_names_is_their_edits() {
        let pairs =
            [("call", "call", 0), ("call", "cal", 1), ("", "abc", 3), ("kitten", "sitting", 3)];
        for (left, right, edits) in pairs {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }

    #[test]
    fn only_a_misspelling_has_a_nearest_name() {
        let known = ["append_message", "create_session"];
        assert_eq!(nearest("apend_message", known), Some("append_message"));
        assert_eq!(nearest("pay", known), None);
        assert_eq!(nearest("pay", []), None);
    }
}
