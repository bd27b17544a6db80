//! The parts of a page that a command writes. Each is between two comments, which name it:
//! `<!-- abide-bench NAME: begin -->` and `<!-- abide-bench NAME: end -->`, in a line or around several.

const BEGIN: &str = ": begin -->";
const COMMENT: &str = "<!-- abide-bench ";

/// The names of a page's parts, in order.
pub(crate) fn part_names(page: &str) -> Vec<&str> {
    let comments = page.split(COMMENT).skip(1);
    comments
        .filter_map(|rest| rest.split_once(BEGIN))
        .map(|(name, _)| name)
        .filter(|name| !name.contains('\n'))
        .collect()
}

/// Replaces the text between the marks of a part.
///
/// # Errors
/// A sentence if the page does not have both marks.
pub(crate) fn replace(page: &str, name: &str, text: &str) -> Result<String, String> {
    let begin = format!("{COMMENT}{name}{BEGIN}");
    let end = format!("{COMMENT}{name}: end -->");
    let (before, rest) =
        page.split_once(&begin).ok_or_else(|| format!("the page has no {begin}"))?;
    let (_, after) = rest.split_once(&end).ok_or_else(|| format!("the page has no {end}"))?;
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a\n<!-- abide-bench x: begin -->\nold\n<!-- abide-bench x: end -->\n\
        | <!-- abide-bench y: begin -->1<!-- abide-bench y: end --> |\n";

    #[test]
    fn only_the_text_between_the_marks_changes() {
        assert_eq!(part_names(PAGE), ["x", "y"]);
        let replaced = replace(PAGE, "x", "\nnew\n").expect("it has both marks");
        assert_eq!(replaced, PAGE.replace("old", "new"));
        assert_eq!(replace(&replaced, "x", "\nnew\n").as_ref(), Ok(&replaced));
        let replaced = replace(PAGE, "y", "2").expect("it has both marks");
        assert_eq!(replaced, PAGE.replace('1', "2"));
    }

    #[test]
    fn a_missing_mark_is_an_error() {
        let why = replace(PAGE, "z", "").expect_err("it has no such part");
        assert_eq!(why, "the page has no <!-- abide-bench z: begin -->");
    }
}
