//! The media type of a response. Servers write it in any case, and with parameters.

use reqwest::header::{CONTENT_TYPE, HeaderMap};

/// The media type of events.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// Returns the media type that these headers state, in lower case and without parameters; empty if they state none.
#[must_use]
pub fn media_type(headers: &HeaderMap) -> String {
    let stated = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    essence(stated.unwrap_or_default())
}

/// Returns a media type in lower case and without its parameters.
pub(crate) fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns `true` if a media type is that of JSON.
pub(crate) fn is_json(media_type: &str) -> bool {
    let essence = essence(media_type);
    essence == "application/json" || essence.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn media_types_are_compared_without_case() {
        for json in
            ["application/json", "Application/JSON; charset=utf-8", "application/problem+Json"]
        {
            assert!(is_json(json), "{json}");
        }
        for other in ["text/json", "application/jsonl", "application/xml; a=application/json", ""] {
            assert!(!is_json(other), "{other}");
        }
        let stated = HeaderValue::from_static("Text/Event-Stream;charset=UTF-8");
        assert_eq!(media_type(&HeaderMap::from_iter([(CONTENT_TYPE, stated)])), EVENT_STREAM);
        assert_eq!(media_type(&HeaderMap::new()), "");
    }
}
