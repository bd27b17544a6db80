//! The kinds of joins.

use sqlite3_parser::ast::{JoinOperator, JoinType};

/// How a term of FROM is joined to the preceding ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// JOIN, CROSS JOIN, comma.
    Inner,
    /// LEFT JOIN: this term may be all NULL.
    Left,
    /// RIGHT JOIN: the preceding terms may be all NULL.
    Right,
    /// FULL JOIN: both.
    Full,
}

impl Join {
    /// The keyword.
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Join::Inner => "JOIN",
            Join::Left => "LEFT JOIN",
            Join::Right => "RIGHT JOIN",
            Join::Full => "FULL JOIN",
        }
    }

    /// Whether rows of this term are kept if no preceding row matches.
    pub(crate) fn keeps_right(self) -> bool {
        matches!(self, Join::Right | Join::Full)
    }
}

/// A join as it is written.
#[derive(Clone, Copy)]
pub(crate) struct JoinKind {
    pub(crate) join: Join,
    pub(crate) natural: bool,
}

/// The join that an operator means.
pub(crate) fn join_kind(operator: JoinOperator) -> JoinKind {
    let JoinOperator::TypedJoin(Some(kind)) = operator else {
        return JoinKind { join: Join::Inner, natural: false };
    };
    let join = match (kind.contains(JoinType::LEFT), kind.contains(JoinType::RIGHT)) {
        (true, true) => Join::Full,
        (false, true) => Join::Right,
        (true, false) => Join::Left,
        (false, false) => Join::Inner,
    };
    JoinKind { join, natural: kind.contains(JoinType::NATURAL) }
}
