//! `abide sql`: runs one read-only statement.

use abide_client::QueryResult;
use abide_schema::wire::QueryResponse;
use clap::Args;

use crate::cells;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::pairs;
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

    /// Read the state after this event
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
    let mut query = abide.sql(&*args.sql);
    for (name, value) in params.values {
        query = query.param(&name, value);
    }
    if let Some(seq) = args.as_of {
        query = query.as_of(seq);
    }
    let answer = query.rows().await;
    abide.close().await;
    show(options, answer.map_err(|error| statement_hints::explain(error.into(), &args.sql))?)
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
    if answer.rows.is_empty() && !options.json { print_line(none) } else { show(options, answer) }
}

fn show(options: &Options, answer: QueryResult) -> Result<(), Failure> {
    let QueryResult { seq, columns, rows } = answer;
    let rows = rows.iter().map(|row| row.iter().map(abide_schema::Value::to_json).collect());
    if options.json {
        return print_json(&QueryResponse { seq, columns, rows: rows.collect() });
    }
    let terminal = Terminal::of_stdout();
    let rows: Vec<MarkedRow> = rows.map(|row| (row, None)).collect();
    let RenderedTable { text, left_out } = table::table(terminal, &table::named(&columns), &rows);
    print_line(text)?;
    let mut foot = format!("{}  ·  as of {seq}", cells::counted(rows.len() as u64, "row"));
    if left_out > 0 {
        let columns = cells::counted(left_out as u64, "empty column");
        foot.push_str(&format!("  ·  {columns} not shown"));
    }
    print_line(terminal.dim(foot))
}
