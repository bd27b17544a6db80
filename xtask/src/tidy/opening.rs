//! Rule: the first line of a file describes it.

use super::Finding;
use super::source::Source;

pub(crate) fn check(source: &Source) -> Option<Finding> {
    let first = source.lines.first().map_or("", |line| line.text.as_str());
    let says = first.strip_prefix("//!").is_some_and(|text| !text.trim().is_empty());
    (!says).then(|| {
        Finding::new(&source.path, "does not start with `//!` and a description of the file")
    })
}
