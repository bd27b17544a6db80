//! Errors with their causes.

use std::error::Error;

/// Returns the causes of an error, the nearest first.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

/// Returns the text of an error and of its causes.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let mut described = error.to_string();
    for cause in causes(error) {
        let text = cause.to_string();
        // Some errors include the text of their cause, others do not.
        if !described.contains(&text) {
            described = format!("{described}: {text}");
        }
    }
    described
}

/// Returns the causes of an error of the HTTP client. The text of the error itself has the URL, which may contain data that
/// must not be shown.
pub(crate) fn describe_causes(error: &reqwest::Error) -> String {
    causes(error).next().map_or_else(|| "unknown error".to_owned(), describe)
}
