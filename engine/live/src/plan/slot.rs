//! The parameters of a template: where the value of each comes from.

use abide_schema::Value;
use abide_schema::table::Kind;

/// The value of a parameter of a template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    /// The caller's parameter of this name or number.
    Caller(String),
    /// A literal of the text.
    Literal(Value),
    /// The attribute of this name of a restricted caller.
    Principal(String),
}

impl Slot {
    /// The kind of a literal that became a parameter; `None` for a caller's parameter.
    pub(crate) fn literal_kind(&self) -> Option<Kind> {
        match self {
            Slot::Literal(Value::Integer(_)) => Some(Kind::Integer),
            Slot::Literal(Value::Text(_)) => Some(Kind::Text),
            Slot::Literal(Value::Blob(_)) => Some(Kind::Blob),
            Slot::Literal(Value::Null | Value::Real(_)) | Slot::Caller(_) | Slot::Principal(_) => {
                None
            }
        }
    }
}
