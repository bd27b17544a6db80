//! Messages of `abide.v1`: parsed, or refused with an error.

use abide_schema::{Code, Value};
use abide_server::protocol;

/// See the [module](self).
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Err((_, refusal)) = protocol::read(&text) {
        assert!(!refusal.detail.is_empty(), "{text:?}");
        assert_ne!(refusal.code, Code::Internal, "{text:?}: {refusal}");
    }
    // A cell that can be read is written unchanged.
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(input) else { return };
    if let Ok(cell) = Value::from_json(&json) {
        let again = Value::from_json(&cell.to_json());
        assert_eq!(again.map(|cell| format!("{cell:?}")), Ok(format!("{cell:?}")), "{text:?}");
    }
}
