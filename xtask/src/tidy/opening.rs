//! Rule: a file says on its first line what it is.

use super::Finding;
use super::source::Source;

pub(crate) fn check(source: &Source) -> Option<Finding> {
    let first = source.lines.first().map_or("", |line| line.text.as_str());
    let says = first.strip_prefix("//!").is_some_and(|text| !text.trim().is_empty());
    (!says).then(|| Finding::new(&source.path, "does not open with `//!` and what the file is"))
}
