//! Rows kept from one transaction to the next are bounded, even if all calls are refused: calls
//! that named missing rows, or read large rows and were refused, once left rows in memory for ever.

use abide_schema::Table as _;
use abide_store::RequestIdRow;

use super::*;

fn key(nth: usize) -> [Value; 2] {
    [Value::from("local"), Value::Integer(i64::try_from(nth).unwrap_or(0))]
}

#[test]
fn missing_rows_are_not_cached_without_limit() {
    let mut overlay = Overlay::default();
    for nth in 0..10 * KEPT_ROWS {
        overlay.note(RequestIdRow::SPEC, &key(nth), None);
        overlay.group_finished();
        assert!(overlay.rows.len() <= KEPT_ROWS);
    }
}

#[test]
fn large_unmodified_rows_are_not_cached() {
    let mut overlay = Overlay::default();
    for (nth, bytes) in [KEPT_ROW_BYTES / 2, KEPT_ROW_BYTES * 2].into_iter().enumerate() {
        let row = Row::from([Value::Blob(vec![0; bytes])]);
        overlay.note(RequestIdRow::SPEC, &key(nth), Some(row));
    }
    overlay.group_finished();
    assert!(overlay.get(RequestIdRow::SPEC, &key(0)).is_some());
    assert!(overlay.get(RequestIdRow::SPEC, &key(1)).is_none());
}

/// Each read of many rows writes the touched ones first. A search for them among all changed rows
/// once made cancelling 9,001 sessions take 37 s.
#[test]
fn flushing_touches_does_not_scan_all_changed_rows() {
    let mut overlay = Overlay::default();
    let row = |cell: i64| Some(Row::from([Value::Integer(cell)]));
    for nth in 0..1_000 {
        overlay.change(RequestIdRow::SPEC, &key(nth), row(0), row(1), RowWrite::Done);
        overlay.change(RequestIdRow::SPEC, &key(nth), row(1), row(2), RowWrite::Deferred);
        overlay.change(RequestIdRow::SPEC, &key(nth), row(2), row(3), RowWrite::Deferred);
        assert_eq!(overlay.take_unwritten().len(), 1);
        assert!(overlay.unwritten.is_empty());
    }
    assert_eq!(overlay.changes().len(), 1_000);
}

/// A unit writes a row touched by an earlier one, and is rolled back: the row must be written again.
#[test]
fn a_touch_survives_the_rollback_of_the_unit_that_wrote_it() {
    let mut overlay = Overlay::default();
    let row = |cell: i64| Some(Row::from([Value::Integer(cell)]));
    overlay.change(RequestIdRow::SPEC, &key(1), row(0), row(1), RowWrite::Deferred);
    overlay.begin_unit();
    assert_eq!(overlay.take_unwritten().len(), 1);
    overlay.change(RequestIdRow::SPEC, &key(1), row(1), row(2), RowWrite::Deferred);
    overlay.undo_unit();
    let touched = overlay.take_unwritten();
    assert_eq!((touched.len(), touched[0].row[0].clone()), (1, Value::Integer(1)));
    assert_eq!(overlay.take_unwritten().len(), 0);
}
