//! Figures of a built program: its size, how fast it writes JSON, and a step of a run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::table::Figures;
use crate::command;

/// A query with 90,000 rows of six columns, about 10 MB of JSON. The rows are computed, so that the file does not matter.
const ROWS: &str = "WITH RECURSIVE numbers(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM numbers WHERE i < 90000) \
    SELECT i AS id, 's_' || (1000000 + i) AS session_id, i * 7919 AS amount, i / 7.0 AS rate, \
    'completed' AS status, 'The \"parcel\" ' || i || ' has arrived' AS content FROM numbers";

/// How often the query runs: the clock of processes counts hundredths of a second.
const REPETITIONS: usize = 5;

/// Returns the size of a binary without symbols, its machine code, and its speed of JSON.
pub(super) fn figures(root: &Path, binary: &Path) -> Result<Figures, String> {
    let folder = command::target(root).join("figures");
    // A database of another version would be refused.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let stripped = folder.join("stripped");
    let mut strip = Command::new("strip");
    command::succeed(strip.arg("-o").arg(&stripped).arg(binary), "strip")?;
    let bytes = fs::metadata(&stripped).map_err(|why| format!("{}: {why}", stripped.display()))?;
    let sections = output(Command::new("size").arg("-A").arg(&stripped))?;
    let text = text_section(&sections).ok_or("size prints no section .text")?;
    let rate = json_rate(binary, &folder)?;
    let rows = [
        ("bytes of the binary without symbols", bytes.len().to_string()),
        ("bytes of its .text", text.to_string()),
        ("MB of JSON per second of processor time", format!("{rate:.0}")),
    ];
    Ok(rows.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// Returns the overhead of a step of a run, as `abide-bench agents` measures it with one run at a time.
pub(super) fn step_of_a_run(root: &Path, bench: &Path) -> Result<(String, String), String> {
    let folder = command::target(root);
    let mut agents = Command::new(bench);
    let report = output(agents.args(["agents", "--crowd", "1", "--dir"]).arg(&folder))?;
    let median = step_median(&report).ok_or("abide-bench agents prints no table of steps")?;
    Ok(("overhead of a step of a run, ms".to_owned(), median.to_owned()))
}

/// Returns the bytes of the section `.text` in the output of `size -A`.
fn text_section(sections: &str) -> Option<u64> {
    let line = sections.lines().find_map(|line| line.strip_prefix(".text "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the third cell of the row of one concurrent run.
fn step_median(report: &str) -> Option<&str> {
    let rows = report.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let mut tables = rows.skip_while(|cells| cells.get(1) != Some(&"concurrent runs"));
    let row = tables.find(|cells| cells.get(1) == Some(&"1"))?;
    row.get(3).copied()
}

/// Returns the bytes of JSON, in millions, that `abide sql` writes per second of processor time: the time of the rows
/// minus the time of a query that computes the same rows and returns one number.
fn json_rate(binary: &Path, folder: &Path) -> Result<f64, String> {
    let database = folder.join("figures.db");
    if output(Command::new(binary).args(["db", "create"]).arg(&database)).is_err() {
        // A program from before `abide db create` makes the file of a call.
        let mut create = Command::new(binary);
        create.args(["call", "create_session", "agent=figures", "id=figures", "--db"]);
        output(create.arg(&database))?;
    }
    let sum = format!(
        "SELECT sum(id + length(session_id) + amount + rate + length(status) + length(content)) FROM ({ROWS})"
    );
    let mut bytes = 0;
    let mut ticks = [0, 0];
    for _ in 0..REPETITIONS {
        for (sql, ticks) in [ROWS, &sum].into_iter().zip(&mut ticks) {
            let before = ticks_of_children()?;
            let mut query = Command::new(binary);
            bytes += output(query.args(["sql", sql, "--json", "--db"]).arg(&database))?.len();
            *ticks += ticks_of_children()? - before;
        }
    }
    let [rows, query_alone] = ticks;
    #[expect(clippy::cast_precision_loss, reason = "counts of a few digits")]
    let seconds = rows.saturating_sub(query_alone).max(1) as f64 / 100.0;
    #[expect(clippy::cast_precision_loss, reason = "hundreds of millions")]
    let megabytes = bytes as f64 / 1e6;
    Ok(megabytes / seconds)
}

/// Returns the processor time of all children that have ended, in hundredths of a second.
fn ticks_of_children() -> Result<u64, String> {
    const PATH: &str = "/proc/self/stat";
    let stat = fs::read_to_string(PATH).map_err(|why| format!("{PATH}: {why}"))?;
    parse_ticks(&stat).ok_or_else(|| format!("{PATH} has an unknown form"))
}

/// Returns `cutime + cstime`, the fields 16 and 17. The name, field 2, is in parentheses and can contain spaces.
fn parse_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(13);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

/// Runs a program that must succeed, and returns its standard output.
fn output(program: &mut Command) -> Result<String, String> {
    let output = program.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|why| format!("cannot run {program:?}: {why}"))?;
    if !output.status.success() {
        return Err(format!("{program:?} failed: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{program:?} prints no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::{parse_ticks, step_median, text_section};

    #[test]
    fn reads_the_output_of_programs() {
        let sections = "abide  :\nsection  size  addr\n.init  27  4096\n.text   48444211   4864\n";
        assert_eq!(text_section(sections), Some(48_444_211));
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 200 0 0 11 12 130 14 20 0 1 0 99";
        assert_eq!(parse_ticks(stat), Some(144));
        let report = "| 1 | no |\n\n| concurrent runs | steps | overhead p50 ms |\n|--|--|--|\n\
            | 1   |   168 |   2.63 |\n| 16  |   336 |   4.95 |\n";
        assert_eq!(step_median(report), Some("2.63"));
    }
}
