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

/// Each read of many rows writes the touched ones first. The search for them went through all that the
/// transaction had changed, so cancelling 9,001 sessions took 37 s.
#[test]
fn touched_rows_are_not_searched_for_among_all_that_changed() {
    let mut overlay = Overlay::default();
    let row = |cell: i64| Some(Row::from([Value::Integer(cell)]));
    for nth in 0..1_000 {
        overlay.change(RequestIdRow::SPEC, &key(nth), row(0), row(1), false);
        overlay.change(RequestIdRow::SPEC, &key(nth), row(1), row(2), true);
        overlay.change(RequestIdRow::SPEC, &key(nth), row(2), row(3), true);
        assert_eq!(overlay.take_unwritten().len(), 1);
        assert!(overlay.unwritten.is_empty());
    }
    assert_eq!(overlay.changes().len(), 1_000);
}

/// A unit writes a row that one before it touched, and is undone: the row has to be written again.
#[test]
fn a_touch_outlives_the_unit_that_wrote_it() {
    let mut overlay = Overlay::default();
    let row = |cell: i64| Some(Row::from([Value::Integer(cell)]));
    overlay.change(RequestIdRow::SPEC, &key(1), row(0), row(1), true);
    overlay.begin_unit();
    assert_eq!(overlay.take_unwritten().len(), 1);
    overlay.change(RequestIdRow::SPEC, &key(1), row(1), row(2), true);
    overlay.undo_unit();
    let touched = overlay.take_unwritten();
    assert_eq!((touched.len(), touched[0].row[0].clone()), (1, Value::Integer(1)));
    assert_eq!(overlay.take_unwritten().len(), 0);
}
