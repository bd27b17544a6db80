//! `abide sql`: runs one read-only statement.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use abide_client::QueryResult;
use abide_engine::{Engine, RowRef, RowSink};
use abide_schema::wire::QueryResponseWriter;
use abide_schema::{Caller, Seq, Value};
use clap::Args;

use crate::cells;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_line, print_part};
use crate::pairs::{self, Pairs};
use crate::printable::Printable;
use crate::statement_hints;
use crate::table::{self, MarkedRow, RenderedTable};
use crate::terminal::Terminal;

/// Arguments of `abide sql`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sql {
    /// One SELECT, VALUES or WITH; unrestricted callers can also EXPLAIN
    sql: String,

    /// Values of the parameters of the statement (`:name`), as name=value
    #[arg(value_name = "NAME=VALUE")]
    params: Vec<String>,

    /// Read the state after this event, or after the last commit before it
    #[arg(
        long,
        value_name = "SEQ",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    as_of: Option<i64>,
}

const EXAMPLES: &str = "\
Examples:
  abide sql 'SELECT id, status FROM sessions'
  abide sql 'SELECT role, content FROM agent_state WHERE session_id = :sid' sid=s_01J…
  abide sql 'SELECT status, count(*) FROM tool_calls GROUP BY status' --as-of 1204
  abide sql 'SELECT * FROM events' --db abide.db --json     # no server needed

Columns named …_at are shown as UTC times; --json has microseconds since the Unix epoch.";

/// Runs the statement, and shows the rows.
///
/// # Errors
/// The statement is refused.
pub(crate) async fn run(options: &Options, args: Sql) -> Result<(), Failure> {
    let params = pairs::parse(&args.params)?;
    let abide = connect(options, Access::Read).await?;
    if options.json
        && let Some(engine) = abide.engine()
    {
        let printed = print_while_reading(engine, &args, &params).await;
        abide.close().await;
        return printed.map_err(|failure| statement_hints::explain(failure, &args.sql));
    }
    let mut query = abide.sql(&*args.sql);
    for (name, value) in params.values {
        query = query.param(&name, value);
    }
    if let Some(seq) = args.as_of {
        query = query.as_of(seq);
    }
    let answer = query.rows().await;
    abide.close().await;
    let answer = answer.map_err(|error| statement_hints::explain(error.into(), &args.sql))?;
    print_result(options, &answer)
}

/// Runs a statement of a command, and shows the rows, or a message if there are none.
///
/// # Errors
/// The statement is refused.
pub(crate) async fn list(options: &Options, sql: &str, none: &str) -> Result<(), Failure> {
    let abide = connect(options, Access::Read).await?;
    let answer = abide.sql(sql).rows().await;
    abide.close().await;
    let answer = answer?;
    if answer.rows.is_empty() && !options.json {
        print_line(none)
    } else {
        print_result(options, &answer)
    }
}

/// Runs the statement on the file that this process has opened, and prints the result as JSON while it is read: the
/// whole result is never in memory. If the statement fails after some rows, the JSON document stays incomplete.
async fn print_while_reading(engine: &Engine, args: &Sql, params: &Pairs) -> Result<(), Failure> {
    let printer = JsonPrinter {
        writer: QueryResponseWriter::for_response(),
        last_print: None,
        printed: Ok(()),
    };
    let as_of = args.as_of.map(Seq);
    let caller = Caller::local();
    let read = engine.stream_rows(&caller, &args.sql, &params.values, as_of, printer).await;
    read.map_err(abide_client::Error::from)?.finish()
}

/// The approximate number of bytes that are printed at a time.
const PART_BYTES: usize = 64 << 10;

/// The time after the last output from which the next row is printed at once. A row that comes earlier waits for more.
const PART_DELAY: Duration = Duration::from_millis(50);

/// Prints a result as JSON while it is read.
struct JsonPrinter {
    writer: QueryResponseWriter,
    /// When rows were last printed; `None` before the first row, which is printed at once.
    last_print: Option<Instant>,
    /// The result of the last output. An error ends the query.
    printed: Result<(), Failure>,
}

impl JsonPrinter {
    fn print(&mut self) -> Result<(), Failure> {
        print_part(Printable::json(&self.writer.take_text()))?;
        self.last_print = Some(Instant::now());
        Ok(())
    }

    /// Prints the rest of the document.
    ///
    /// # Errors
    /// Stdout cannot be written to, now or during the query.
    fn finish(mut self) -> Result<(), Failure> {
        self.printed?;
        self.writer.end();
        print_line(Printable::json(&self.writer.take_text()))
    }
}

impl RowSink for JsonPrinter {
    fn begin(&mut self, seq: Seq, columns: Vec<String>) {
        self.writer.begin(seq, &columns);
    }

    fn row(&mut self, row: RowRef<'_>) -> ControlFlow<()> {
        self.writer.row(row.cells());
        if self.writer.pending_bytes() >= PART_BYTES
            || self.last_print.is_none_or(|at| at.elapsed() >= PART_DELAY)
        {
            self.printed = self.print();
        }
        if self.printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Prints a result as JSON, or as a table with a footer: the number of rows, the event after which they were read, and
/// the number of empty columns for which the terminal has no room.
fn print_result(options: &Options, answer: &QueryResult) -> Result<(), Failure> {
    if options.json {
        return print_json_result(answer);
    }
    let terminal = Terminal::from_stdout();
    let columns = table::columns_from_names(&answer.columns);
    let mut rows = Vec::with_capacity(answer.rows.len());
    for row in &answer.rows {
        rows.push(MarkedRow { cells: row.iter().map(Value::to_json).collect(), mark: None });
    }
    let RenderedTable { text, left_out } = table::render_table(terminal, &columns, &rows);
    print_line(text)?;
    let row_count = cells::pluralize(rows.len() as u64, "row");
    let mut footer = format!("{row_count}  ·  as of {}", answer.seq);
    if left_out > 0 {
        let hidden_columns = cells::pluralize(left_out as u64, "empty column");
        footer.push_str(&format!("  ·  {hidden_columns} not shown"));
    }
    print_line(terminal.dim(footer))
}

/// Prints a result in the format of `POST /v1/sql`.
fn print_json_result(answer: &QueryResult) -> Result<(), Failure> {
    let mut writer = QueryResponseWriter::for_response();
    writer.begin(answer.seq, &answer.columns);
    for row in &answer.rows {
        writer.row(row.iter().map(Value::borrowed));
    }
    writer.end();
    print_line(Printable::json(&writer.take_text()))
}
