//! One changed cell among many rows: `abide verify --rows` must find it and name it.

use std::path::Path;
use std::process::Output;
use std::time::Instant;

use rusqlite::Connection;

use crate::CheckResult;
use crate::arguments::Arguments;
use crate::figures::{count, figure};
use crate::recovery::fill;
use crate::server::abide;

/// Events, each with at least one row.
const ROWS: u64 = 1_000_000;

/// The same for CI.
const SHARE: u64 = 20_000;

/// Fills a file, verifies it, changes one cell, and verifies it again.
pub(crate) async fn run(mut words: Arguments) -> CheckResult {
    let rows = if words.has("share") { SHARE } else { ROWS };
    words.end()?;
    let folder = tempfile::tempdir().map_err(|why| why.to_string())?;
    let db = folder.path().join("abide.db");
    fill(&db, 0, rows).await?;

    let started = Instant::now();
    let unchanged = verify(&db)?;
    let seconds = started.elapsed().as_secs_f64();
    if !unchanged.status.success() {
        return Err(format!("an unchanged file is not verified: {}", stderr(&unchanged)));
    }
    let what = format!("verification of {} events and their rows", count(rows));
    println!("rows  {what}: {seconds:.1} s");
    figure(&what, format!("{seconds:.1} s"));

    let changed = change_cell(&db).map_err(|why| format!("the cell was not changed: {why}"))?;
    let found = verify(&db)?;
    let text = stderr(&found);
    if found.status.success() || !text.contains(&changed) {
        return Err(format!("the change of {changed} is not found: {text}"));
    }
    println!("rows  one changed cell: {}", text.lines().next().unwrap_or_default());
    Ok(())
}

/// Changes one letter of one message. Returns what must be named.
fn change_cell(db: &Path) -> rusqlite::Result<String> {
    let file = Connection::open(db)?;
    let sql = "SELECT id, seq FROM agent_state ORDER BY id LIMIT 1 OFFSET (SELECT count(*) / 2 FROM agent_state)";
    let (id, seq): (i64, i64) = file.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sql = "UPDATE agent_state SET content = replace(content, 'W', 'w') WHERE id = ?1";
    assert_eq!(file.execute(sql, [id])?, 1, "one row");
    Ok(format!("row {id} has another value of content than event {seq} wrote last"))
}

fn verify(db: &Path) -> CheckResult<Output> {
    let verified = abide()?.args(["verify", "--rows"]).arg(db).output();
    verified.map_err(|why| format!("abide does not start: {why}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
