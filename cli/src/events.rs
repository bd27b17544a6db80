//! `abide events`: shows the log, one line for each event.

use abide_client::{Abide, Seq, Subscription, Value};
use abide_schema::{Code, Micros, Refusal, Table as _};
use abide_store::EventRow;
use clap::Args;
use serde::{Serialize, Serializer};
use serde_json::Value as JsonValue;

use crate::cells;
use crate::connect::{Access, check_followed, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::log_pages::LogPages;
use crate::output::{note, print_json, print_line};
use crate::printable::Printable;
use crate::reconnect::{history_notice, reporting_reconnects};
use crate::signals;
use crate::terminal::Terminal;

/// Arguments of `abide events`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Events {
    /// Only the events of one session
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// Only the last N events; the default is all, and ten with --follow
    #[arg(long, value_name = "N")]
    last: Option<u32>,

    /// Keep running, and show new events as they are committed
    #[arg(long, short)]
    follow: bool,
}

const EXAMPLES: &str = "\
Examples:
  abide events --last 20
  abide events --session s_01J… --follow
  abide events --json | jq -r .reducer | sort | uniq -c
  abide events --db abide.db                     # no server needed";

/// Default number of earlier events with --follow.
const FOLLOWED_LAST: u32 = 10;

/// The longest line on a pipe. `--json` has the whole arguments.
const PIPED_LINE: usize = 240;

/// Shows the log.
///
/// # Errors
/// The log cannot be read.
pub(crate) async fn run(options: &Options, args: Events) -> Result<(), Failure> {
    if args.follow {
        check_followed(options, "followed")?;
    }
    let abide = connect(options, Access::Read).await?;
    let stop = signals::stop_requested()?;
    let shown = tokio::select! {
        shown = reporting_reconnects(abide.link(), options, print_events(&abide, options, &args)) => shown,
        () = stop => Ok(()),
    };
    abide.close().await;
    shown
}

async fn print_events(abide: &Abide, options: &Options, args: &Events) -> Result<(), Failure> {
    let last = args.last.or(args.follow.then_some(FOLLOWED_LAST));
    let session = match &args.session {
        Some(id) => Some(stored_session(abide, id).await?),
        None => None,
    };
    let session = session.as_deref();
    let start = match last {
        Some(last) => find_seq_before_last(abide, session, last).await?,
        None => Seq::ZERO,
    };
    let mut lines = Lines::new(options.json);
    let columns = select_visible_columns(abide).await?;
    // Before the log is read, so that a restore meanwhile is noticed.
    let live = if args.follow {
        Some(subscribe_to_new_events(abide, &columns, session).await?)
    } else {
        None
    };
    let mut log = LogPages::new(abide, &columns, session, start);
    while let Some(page) = log.next().await? {
        lines.print_rows(page.rows.iter().map(|row| &row[..]))?;
    }
    let Some(mut live) = live else { return Ok(()) };
    let mut after = log.after();
    while let Some(update) = live.try_next().await? {
        if update.history_changed {
            note(history_notice(options, "all of its events follow"));
            after = Seq::ZERO;
        }
        let repeats = update.reset && !update.history_changed;
        let mut rows: Vec<&[Value]> = update.insert_rows().collect();
        // A reset repeats all rows; the seq selects the new ones.
        rows.retain(|row| seq_cell(row) > after && (!repeats || seq_cell(row) > update.from));
        rows.sort_by_key(|row| seq_cell(row));
        lines.print_rows(rows.into_iter())?;
    }
    Ok(())
}

/// Subscribes to the events from now on.
async fn subscribe_to_new_events(
    abide: &Abide,
    columns: &str,
    session: Option<&str>,
) -> Result<Subscription, Failure> {
    let of_session = if session.is_some() { "WHERE session_id = :session" } else { "" };
    loop {
        let reconnects = abide.reconnects();
        let head = abide.sql("SELECT 1").rows().await?.seq;
        let mut live = abide.subscribe(format!("SELECT {columns} FROM events {of_session}"));
        if let Some(session) = session {
            live = live.param("session", session);
        }
        let live = live.after(head).await?;
        // After a reconnect, the seq can be of another history than the subscription.
        if abide.reconnects() == reconnects {
            return Ok(live);
        }
    }
}

/// The stored id of a session. A caller with a scope may omit the namespace of its scope, as in arguments of
/// reducers.
///
/// # Errors
/// There is no such session.
pub(crate) async fn stored_session(abide: &Abide, id: &str) -> Result<String, Failure> {
    let sql = "SELECT id FROM sessions WHERE id = :id
        UNION ALL
        SELECT id FROM (
            SELECT id FROM sessions WHERE substr(id, -length(:id) - 1) = '/' || :id LIMIT 3)";
    let found: Vec<String> = abide.sql(sql).param("id", id).fetch().await?;
    match &found[..] {
        [stored] => return Ok(stored.clone()),
        [stored, ..] if stored == id => return Ok(stored.clone()),
        _ => {}
    }
    // A policy may hide the session but not its events.
    let of_log = "SELECT DISTINCT session_id FROM events WHERE session_id = :id";
    let logged: Vec<String> = abide.sql(of_log).param("id", id).fetch().await?;
    if let Some(stored) = logged.into_iter().next() {
        return Ok(stored);
    }
    let refusal = Refusal::new(Code::NotFound, format!("there is no session {id}"));
    Err(if found.is_empty() {
        refusal.hint("`abide sql 'SELECT id FROM sessions'` lists them")
    } else {
        refusal.hint(format!("give the whole id: {}, …", found.join(", ")))
    }
    .into())
}

/// Returns the columns of `events` as SQL, with NULL for those that are hidden from this caller.
async fn select_visible_columns(abide: &Abide) -> Result<String, Failure> {
    let visible = abide.sql("SELECT * FROM events LIMIT 0").rows().await?.columns;
    let columns = event_columns().map(|name| {
        if visible.iter().any(|column| column == name) {
            name.to_owned()
        } else {
            format!("NULL AS {name}")
        }
    });
    Ok(columns.collect::<Vec<_>>().join(", "))
}

/// Returns the names of the columns of `events`, in the order of the table.
fn event_columns() -> impl Iterator<Item = &'static str> {
    EventRow::SPEC.columns.iter().map(|column| column.name)
}

/// Returns the seq before the last N events.
async fn find_seq_before_last(
    abide: &Abide,
    session: Option<&str>,
    last: u32,
) -> Result<Seq, Failure> {
    let of_session = if session.is_some() { "WHERE session_id = :session" } else { "" };
    let mut query = abide.sql(format!(
        "SELECT coalesce(min(seq) - 1, (SELECT coalesce(max(seq), 0) FROM events))
         FROM (SELECT seq FROM events {of_session} ORDER BY seq DESC LIMIT :last)"
    ));
    if let Some(session) = session {
        query = query.param("session", session);
    }
    let before: Vec<i64> = query.param("last", last).fetch().await?;
    Ok(Seq(before.first().copied().unwrap_or(0)))
}

fn seq_cell(row: &[Value]) -> Seq {
    match row.first() {
        Some(Value::Integer(seq)) => Seq(*seq),
        _ => Seq::ZERO,
    }
}

/// Formats events as lines.
#[derive(Debug)]
struct Lines {
    as_json: bool,
    /// Width of the name columns: the widest name so far.
    session: usize,
    reducer: usize,
    caller: usize,
}

impl Lines {
    fn new(as_json: bool) -> Lines {
        Lines { as_json, session: 1, reducer: 1, caller: 1 }
    }

    /// Prints rows of the log, in its columns.
    fn print_rows<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [Value]> + Clone,
    ) -> Result<(), Failure> {
        if self.as_json {
            return rows.into_iter().try_for_each(print_event);
        }
        for row in rows.clone() {
            self.session = self.session.max(text_cell(row, 2).chars().count());
            self.reducer = self.reducer.max(text_cell(row, 3).chars().count());
            self.caller = self.caller.max(text_cell(row, 4).chars().count());
        }
        rows.into_iter().try_for_each(|row| print_line(self.format_row(row)))
    }

    fn format_row(&self, row: &[Value]) -> Printable {
        let terminal = Terminal::from_stdout();
        let at = match row.get(1) {
            Some(Value::Integer(micros)) => cells::format_time(Micros(*micros)),
            _ => "-".to_owned(),
        };
        let head = format!(
            "{seq:>7}  {at}  {session:s$}  {reducer:r$}  {caller:c$}  ",
            seq = seq_cell(row),
            session = text_cell(row, 2),
            reducer = text_cell(row, 3),
            caller = text_cell(row, 4),
            s = self.session,
            r = self.reducer,
            c = self.caller,
        );
        let width = terminal.columns().map_or(PIPED_LINE, usize::from);
        let refusal =
            refusal_code(row).map_or_else(String::new, |code| format!("refused {code}  "));
        let arguments = refusal + &text_cell(row, 6);
        let arguments = cells::truncate(&arguments, width.saturating_sub(head.chars().count()));
        match arguments.trim_end() {
            "" => head.trim_end().into(),
            arguments => Printable::from(head) + terminal.dim(arguments),
        }
    }
}

/// Returns the code of a recorded refusal.
fn refusal_code(row: &[Value]) -> Option<String> {
    let Some(Value::Text(outcome)) = row.get(7) else { return None };
    if !outcome.starts_with("{\"$refused\"") {
        return None;
    }
    let outcome: JsonValue = serde_json::from_str(outcome).ok()?;
    Some(outcome["$refused"]["code"].as_str()?.to_owned())
}

fn text_cell(row: &[Value], at: usize) -> String {
    match row.get(at) {
        Some(Value::Text(text)) => cells::one_line(text),
        _ => "-".to_owned(),
    }
}

fn print_event(row: &[Value]) -> Result<(), Failure> {
    let mut cells: Vec<JsonValue> = row.iter().map(cell_to_json).collect();
    // The columns with JSON: arguments, outcome and authority.
    for at in [6, 7, 10] {
        let parsed = cells.get(at).and_then(JsonValue::as_str);
        if let Some(parsed) = parsed.and_then(|text| serde_json::from_str(text).ok()) {
            cells[at] = parsed;
        }
    }
    print_json(&JsonEvent(&cells))
}

/// An event for programs: an object with its members in the order of the table.
struct JsonEvent<'a>(&'a [JsonValue]);

impl Serialize for JsonEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(event_columns().zip(self.0))
    }
}

/// Hashes in hexadecimal; other values in the form of the protocol.
fn cell_to_json(value: &Value) -> JsonValue {
    match value {
        Value::Blob(hash) => hex::encode(hash).into(),
        value => value.to_json(),
    }
}
