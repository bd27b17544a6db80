//! The files that a call touched, as its stored result lists them for auditors: `content.files`.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::path::Path;

/// The change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Touch {
    Read,
    Created,
    Modified,
    Deleted,
}

impl Touch {
    fn as_str(self) -> &'static str {
        match self {
            Touch::Read => "read",
            Touch::Created => "created",
            Touch::Modified => "modified",
            Touch::Deleted => "deleted",
        }
    }
}

/// Returns an entry of the list. The digest is that of the file's content after the call.
pub(super) fn touched(path: &Path, touch: Touch, content: Option<&[u8]>) -> Value {
    let path = path.to_string_lossy();
    let mut entry = json!({"path": path, "action": touch.as_str()});
    if let Some(content) = content {
        entry["bytes"] = json!(content.len());
        entry["sha256"] = json!(hex::encode(Sha256::digest(content)));
    }
    entry
}
