//! What a digest depends on, and what it does not.

use abide_schema::{Table as _, table};
use expect_test::expect;

use super::*;

/// A table with a key of two columns.
#[table(name = "places", without_rowid)]
struct Place {
    #[column(key)]
    country: String,
    #[column(key)]
    number: i64,
    note: Option<String>,
    area: f64,
}

const SALT: Salt = [7; 16];

fn row(country: &str, number: i64, note: Option<&str>, area: f64) -> Row {
    let note = note.map_or(Value::Null, Value::from);
    Row::from([Value::from(country), Value::Integer(number), note, Value::Real(area)])
}

/// A write, as the row before and after it.
type Write = (Option<Row>, Option<Row>);

fn digest(writes: &[Write]) -> Hash {
    let mut written = WrittenRows::default();
    for (before, after) in writes {
        let key = after.as_ref().or(before.as_ref()).expect("a write has a row");
        let key = Place::SPEC.key_of(key);
        written.push(Place::SPEC, &key, before.clone(), after.clone());
    }
    written.take_digest(&SALT, &|_| None)
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Files depend on these. `docs/format.md` has the first one as its example.
#[test]
fn known_digests_never_change() {
    let long = "x".repeat(LONG_CELL_BYTES + 1);
    let digests = [
        digest(&[(None, Some(row("de", 1, None, 0.5)))]),
        digest(&[(Some(row("de", 1, None, 0.5)), Some(row("de", 1, Some("n"), 0.5)))]),
        digest(&[(Some(row("de", 1, None, 0.5)), None)]),
        digest(&[(None, Some(row("de", -1, Some(&long), f64::INFINITY)))]),
        digest(&[]),
    ];
    let digests: Vec<String> = digests.iter().map(hex).collect();
    expect![[r#"
        077c5226a22140c1c6d084cb8eaadb3a93ad2aa5376e8c8e538e3f6fc5ad368e
        d0d843425a12072f8a230e7e1bca8685617ba831136fecdfa67d1720c944911a
        facfaaf2ab42b25d560da48849eb3581c39740c45d68a7787e358f335fb2c0a2
        cd7cfd57f1da11207945444cb90c3a21d716b800ff91f5d1e128f28e909579b6
        9119d79001581391321e4a5be7f793384dd66a36caa5a78fc65bc1a753138504"#]]
    .assert_eq(&digests.join("\n"));
}

#[test]
fn the_order_of_writes_to_different_rows_does_not_matter() {
    let a = (None, Some(row("a", 1, None, 0.0)));
    let b = (None, Some(row("b", 0, None, 0.0)));
    assert_eq!(digest(&[a.clone(), b.clone()]), digest(&[b, a]));
}

#[test]
fn only_the_net_change_of_a_row_counts() {
    let states = [1.0, 2.0, 3.0].map(|area| Some(row("a", 1, None, area)));
    let [first, second, third] = states;
    let in_steps = digest(&[(first.clone(), second.clone()), (second.clone(), third.clone())]);
    assert_eq!(in_steps, digest(&[(first.clone(), third.clone())]));
    let back = digest(&[(first.clone(), second.clone()), (second.clone(), first.clone())]);
    assert_eq!(back, digest(&[]));
    let gone = digest(&[(None, second.clone()), (second, None)]);
    assert_eq!(gone, digest(&[]));
    // A row that is deleted and made again differs from before only in its cells.
    assert_eq!(digest(&[(first.clone(), None), (None, third.clone())]), digest(&[(first, third)]));
}

/// Every cell of the row counts, its type, the kind of the write, and the salt.
#[test]
fn different_writes_have_different_digests() {
    let base = row("a", 1, Some("1"), 1.0);
    let mut digests = vec![
        digest(&[(None, Some(base.clone()))]),
        digest(&[(Some(base.clone()), None)]),
        digest(&[]),
    ];
    for (at, cell) in [
        (0, Value::from("b")),
        (1, Value::Integer(2)),
        (2, Value::from("2")),
        (2, Value::Null),
        (2, Value::Blob(b"1".to_vec())),
        (2, Value::Integer(1)),
        (3, Value::Real(-1.0)),
    ] {
        let mut cells = base.to_vec();
        cells[at] = cell;
        let changed = Row::from(cells);
        digests.push(digest(&[(None, Some(changed.clone()))]));
        digests.push(digest(&[(Some(changed), None)]));
    }
    let mut written = WrittenRows::default();
    written.push(Place::SPEC, &Place::SPEC.key_of(&base), None, Some(base.clone()));
    digests.push(written.take_digest(&[8; 16], &|_| None));
    let distinct: std::collections::BTreeSet<Hash> = digests.iter().copied().collect();
    // Deletions name the key only: five of the changed rows have that of the base.
    assert_eq!(distinct.len(), digests.len() - 5);
}

/// An auditor who recomputed the digest from the row in the file got another one: SQLite stores -0.0 as 0.0.
#[test]
fn negative_zero_has_the_digest_of_what_is_stored() {
    let with_area = |area| digest(&[(None, Some(row("a", 1, None, area)))]);
    assert_eq!(with_area(-0.0), with_area(0.0));
}

#[test]
fn a_known_digest_is_not_computed_again() {
    let long = "y".repeat(LONG_CELL_BYTES + 1);
    let written = |known: KnownDigest<'_>| {
        let mut written = WrittenRows::default();
        let after = row("a", 1, Some(&long), 0.0);
        written.push(Place::SPEC, &Place::SPEC.key_of(&after), None, Some(after));
        written.take_digest(&SALT, known)
    };
    let computed = written(&|_| None);
    assert_eq!(written(&|content| Some(Sha256::digest(content).into())), computed);
    assert_ne!(written(&|_| Some([0; 32])), computed, "a wrong one would be used");
}
