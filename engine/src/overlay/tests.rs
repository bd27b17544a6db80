//! What is kept from one transaction to the next is bounded, also when nothing but refusals comes: calls
//! that name what is not there, or that look at large rows and are refused, once were kept for ever.

use abide_schema::Table as _;
use abide_store::RequestIdRow;

use super::*;

fn key(nth: usize) -> [Value; 2] {
    [Value::from("local"), Value::Integer(i64::try_from(nth).unwrap_or(0))]
}

#[test]
fn rows_that_are_not_there_are_not_kept_without_end() {
    let mut overlay = Overlay::default();
    for nth in 0..10 * KEPT_ROWS {
        overlay.note(RequestIdRow::SPEC, &key(nth), None);
        overlay.committed();
        assert!(overlay.rows.len() <= KEPT_ROWS);
    }
}

#[test]
fn large_rows_that_were_only_read_are_not_kept() {
    let mut overlay = Overlay::default();
    for (nth, bytes) in [KEPT_ROW_BYTES / 2, KEPT_ROW_BYTES * 2].into_iter().enumerate() {
        let row = Row::from([Value::Blob(vec![0; bytes])]);
        overlay.note(RequestIdRow::SPEC, &key(nth), Some(row));
    }
    overlay.committed();
    assert!(overlay.get(RequestIdRow::SPEC, &key(0)).is_some());
    assert!(overlay.get(RequestIdRow::SPEC, &key(1)).is_none());
}
