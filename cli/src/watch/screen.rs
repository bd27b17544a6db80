//! Updates for people: a table that stays in place and up to date.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::time::Duration;

use abide_client::{Abide, Link, Seq, Subscription, Update, Value};
use tokio::time::{Instant, sleep_until};

use crate::cells;
use crate::failure::Failure;
use crate::printable::Printable;
use crate::table::{self, MarkedRow, RenderedTable, RowMark};
use crate::terminal::Terminal;

/// How long a new or changed row is highlighted.
const HIGHLIGHT_DURATION: Duration = Duration::from_millis(2_000);

/// Interval between checks of the window size.
const SIZE_CHECK_INTERVAL: Duration = Duration::from_millis(1_000);

/// Lines other than rows: the query, a blank and the header above; a blank and the status below.
const FRAME_LINES: usize = 5;

/// Shows a query on the terminal's alternate screen; the main screen returns at the end.
#[derive(Debug)]
pub(super) struct Screen {
    sql: String,
    begun: bool,
    /// Highlighted rows, by their JSON text.
    marks: HashMap<String, Marked>,
    last_change: Seq,
    /// The server has another history than at the beginning.
    history_changed: bool,
    /// The text on the screen without control sequences: it is printed on the main screen at the end.
    shown: Printable,
    next_size_check: Instant,
    link: Link,
}

/// The highlight of a row.
#[derive(Debug)]
struct Marked {
    mark: RowMark,
    until: Instant,
    /// Number of identical rows.
    times: usize,
}

impl Screen {
    /// Switches the terminal to the alternate screen.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub(super) fn open(abide: &Abide, sql: &str) -> Result<Screen, Failure> {
        // The alternate screen, without a cursor.
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(Screen {
            sql: cells::one_line(sql),
            begun: false,
            marks: HashMap::new(),
            last_change: Seq::ZERO,
            history_changed: false,
            shown: Printable::default(),
            next_size_check: Instant::now() + SIZE_CHECK_INTERVAL,
            link: abide.link(),
        })
    }

    /// Processes an update; the first one is the initial result.
    pub(super) fn apply(&mut self, update: &Update) {
        self.last_change = update.seq;
        self.history_changed |= update.history_changed;
        if !self.begun {
            self.begun = true;
            return;
        }
        let until = Instant::now() + HIGHLIGHT_DURATION;
        let came = update.insert_rows().map(|row| (row, RowMark::Came));
        let changed = update.update_rows().map(|row| (row, RowMark::Changed));
        for (row, mark) in came.chain(changed) {
            let fresh = Marked { mark, until, times: 0 };
            let marked = self.marks.entry(row_key(row)).or_insert(fresh);
            *marked = Marked { mark, until, times: marked.times + 1 };
        }
    }

    /// Returns when the screen must be drawn again although nothing changed.
    pub(super) async fn wait_until_due(&mut self) {
        let marks = self.marks.values().map(|marked| marked.until);
        let next = marks.chain([self.next_size_check]).min().unwrap_or(self.next_size_check);
        tokio::select! {
            () = sleep_until(next) => {}
            () = self.link.changed() => {}
        }
    }

    /// Draws the screen.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub(super) fn draw(&mut self, abide: &Abide, live: &Subscription) -> Result<(), Failure> {
        let now = Instant::now();
        self.marks.retain(|_, marked| marked.until > now);
        self.next_size_check = now + SIZE_CHECK_INTERVAL;
        let terminal = Terminal::from_stdout();
        let (columns, lines) = terminal.size.unwrap_or((80, 24));
        let room = usize::from(lines).saturating_sub(FRAME_LINES).max(1);
        let count = live.rows().len();
        let mut alike: HashMap<String, usize> = HashMap::new();
        let rows: Vec<MarkedRow> = (live.rows().take(room))
            .map(|row| {
                let seen = alike.entry(row_key(row)).or_default();
                *seen += 1;
                let marked = self.marks.get(&row_key(row)).filter(|marked| *seen <= marked.times);
                MarkedRow {
                    cells: row.iter().map(Value::to_json).collect(),
                    mark: marked.map(|marked| marked.mark),
                }
            })
            .collect();
        let RenderedTable { text: table, left_out } =
            table::render_table(terminal, live.columns(), &rows);
        let title = terminal.bold(cells::truncate(&self.sql, columns.into()));
        let status = self.status(abide, count, count.saturating_sub(room), left_out);
        let status = terminal.dim(cells::truncate(&status, columns.into()));
        self.shown = title + "\n\n" + table + "\n\n" + status;
        // From the top: each line is cleared to its end, then everything below.
        write(&format!("\x1b[H{}\x1b[K\x1b[J", self.shown.as_str().replace('\n', "\x1b[K\r\n")))
    }

    fn status(&self, abide: &Abide, rows: usize, below: usize, left_out: usize) -> String {
        let mut parts = vec![cells::pluralize(rows as u64, "row")];
        if below > 0 {
            parts.push(format!("{} below", cells::format_count(below as u64)));
        }
        if left_out > 0 {
            parts.push(format!("{} not shown", cells::pluralize(left_out as u64, "empty column")));
        }
        parts.push(format!("last change at {}", self.last_change));
        if self.history_changed {
            parts.push("the history changed (backup or other file)".to_owned());
        }
        match abide.reconnects() {
            _ if !self.link.connected() => parts.push("waiting for the server".to_owned()),
            0 => parts.push("live".to_owned()),
            1 => parts.push("live, resumed once".to_owned()),
            times => parts.push(format!("live, resumed {times} times")),
        }
        parts.push("Ctrl-C ends".to_owned());
        parts.join("  ·  ")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Restores the main screen and the cursor, and prints the last table.
        let left = format!("\x1b[?1049l\x1b[?25h{}\n", self.shown);
        // The terminal is gone if this fails.
        let _ = write(&left);
    }
}

fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

fn row_key(row: &[Value]) -> String {
    row.iter().map(|value| value.to_json().to_string()).collect::<Vec<_>>().join("\n")
}
