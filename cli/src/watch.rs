//! `abide watch`: shows the rows of a query, and every change to them.

use abide_client::{Abide, Subscription};
use clap::Args;

use crate::connect::{Access, check_followed, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{note, print_json, print_line};
use crate::pairs;
use crate::reconnect::{history_notice, reporting_reconnects};
use crate::signals;
use crate::statement_hints;
use crate::terminal::Terminal;

mod frames;
mod lines;
mod screen;

use frames::Frames;
use lines::Lines;
use screen::Screen;

/// Arguments of `abide watch`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// One SELECT that can be a live query
    sql: String,

    /// Values of the parameters of the statement (`:name`), as name=value
    #[arg(value_name = "NAME=VALUE")]
    params: Vec<String>,

    /// Stop after N updates; the first update is the current rows
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Start with the rows as they were after this event, then follow the changes since
    #[arg(
        long,
        value_name = "SEQ",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(0..)
    )]
    as_of: Option<i64>,
}

const EXAMPLES: &str = "\
On a terminal the output is a table that stays up to date: new rows are green, changed rows yellow.
On a pipe each change is a line: `+` for a new row, `~` for a changed row, `-` for a removed row.
In a query with LIMIT the line has the position of the row, from `#1`.
With --json each update is one object: a snapshot, then deltas. If an older backup was restored, a
snapshot with \"history_changed\": true replaces all earlier ones.

When the connection is lost, abide reconnects and no change is missed. Ctrl-C ends it. With --db it
joins the engine of programs that share the file (`abide open`, SDKs).

Examples:
  abide watch \"SELECT id, reason FROM handoff_requests WHERE status = 'pending'\"
  abide watch 'SELECT role, content FROM agent_state WHERE session_id = :sid ORDER BY id' sid=s_01J…
  abide watch 'SELECT id, status FROM sessions' --as-of 1204
  abide watch 'SELECT * FROM tool_calls' --json | jq .changes[0].inserts";

/// How updates are shown.
enum Display {
    Screen(Screen),
    Lines(Lines),
    Frames(Frames),
}

/// Watches until Ctrl-C, or for the given number of updates.
///
/// # Errors
/// The query cannot be live, or no server answers.
pub(crate) async fn run(options: &Options, args: Watch) -> Result<(), Failure> {
    check_followed(options, "watched")?;
    let params = pairs::parse(&args.params)?;
    let abide = connect(options, Access::Read).await?;
    let mut subscribe = abide.subscribe(&args.sql);
    for (name, value) in params.values {
        subscribe = subscribe.param(&name, value);
    }
    if let Some(seq) = args.as_of {
        subscribe = subscribe.as_of(seq);
    }
    let subscription =
        subscribe.await.map_err(|error| statement_hints::explain(error.into(), &args.sql))?;
    let show = match Terminal::from_stdout().size {
        _ if options.json => Display::Frames(Frames::default()),
        None => Display::Lines(Lines::default()),
        Some(_) => Display::Screen(Screen::open(&abide, &args.sql)?),
    };
    let stop = signals::stop_requested()?;
    let watched = tokio::select! {
        watched = watch(&abide, options, subscription, show, args.count) => watched,
        () = stop => Ok(()),
    };
    abide.close().await;
    watched
}

async fn watch(
    abide: &Abide,
    options: &Options,
    subscription: Subscription,
    show: Display,
    count: Option<u64>,
) -> Result<(), Failure> {
    // The screen shows the state of the connection itself.
    let on_screen = matches!(show, Display::Screen(_));
    let followed = follow(abide, options, subscription, show, count);
    if on_screen {
        followed.await
    } else {
        reporting_reconnects(abide.link(), options, followed).await
    }
}

async fn follow(
    abide: &Abide,
    options: &Options,
    mut subscription: Subscription,
    mut show: Display,
    count: Option<u64>,
) -> Result<(), Failure> {
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let update = match &mut show {
            Display::Screen(screen) => {
                tokio::select! {
                    update = subscription.try_next() => update?,
                    () = screen.wait_until_due() => {
                        screen.draw(abide, &subscription)?;
                        continue;
                    }
                }
            }
            _ => subscription.try_next().await?,
        };
        let Some(update) = update else { break };
        if update.history_changed && !matches!(show, Display::Screen(_)) {
            note(history_notice(options, "what follows is of the present history"));
        }
        match &mut show {
            Display::Screen(screen) => {
                screen.apply(&update);
                screen.draw(abide, &subscription)?;
            }
            Display::Lines(lines) => {
                lines.next_lines(&subscription, &update).into_iter().try_for_each(print_line)?;
            }
            Display::Frames(frames) => print_json(&frames.next_frame(&subscription, &update))?,
        }
        left -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
