//! Which of the values that terms return for groups denote the same group: 1 and 1.0 do, and so do
//! 'a' and 'A' by NOCASE. Evaluating a group twice would apply its change twice.

use std::collections::HashSet;

use abide_schema::Row;

use crate::delta::Weights;
use crate::delta::exact::ExactRow;
use crate::plan::collation::{Collation, canonical};
use crate::plan::query::Query;

/// Each touched group once. `None` if a collation inside an expression makes the identity of groups
/// uncertain.
pub(crate) fn groups_of(query: &Query, touched: Weights) -> Option<Vec<Row>> {
    let by = query.cores[0].1.group.as_deref().unwrap_or(&[]);
    let uncertain = by.iter().any(|by| by.collation.is_none() && by.collates_within);
    if uncertain && touched.len() > 1 {
        return None;
    }
    let mut known = HashSet::new();
    let mut groups: Vec<Row> = touched.rows().map(|(group, _)| group).collect();
    groups.retain(|group| {
        let cells = by
            .iter()
            .zip(group.iter())
            .map(|(by, cell)| canonical(by.collation.unwrap_or(Collation::Binary), cell));
        known.insert(ExactRow(cells.collect()))
    });
    Some(groups)
}
