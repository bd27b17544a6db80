//! `abide agent memory`: what agents remember, and its deletion. The caller's scope and policies apply, so a user sees
//! and deletes what agents remember about that user.

use abide_client::arguments::ForgetMemories;
use clap::{Args, Subcommand};

use crate::cells::pluralize;
use crate::connect::{Access, connect};
use crate::failure::Failure;
use crate::global_options::Options;
use crate::output::{print_json, print_line};
use crate::sql;

/// Arguments of `abide agent memory`.
#[derive(Args, Debug)]
pub(super) struct Memory {
    #[command(subcommand)]
    what: MemoryCommand,
}

#[derive(Debug, Subcommand)]
enum MemoryCommand {
    /// List the facts that agents remember
    List(List),
    /// Delete facts of a space: those with these keys, or all of them
    Forget(Forget),
}

#[derive(Args, Debug)]
struct List {
    /// Only facts with one of these words, the best first
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
}

#[derive(Args, Debug)]
struct Forget {
    /// The space, as the list shows it: support@tenant=acme/
    space: String,

    /// The keys of the facts
    #[arg(value_name = "KEY", required_unless_present = "all")]
    keys: Vec<String>,

    /// Delete all facts of the space
    #[arg(long, conflicts_with = "keys")]
    all: bool,
}

/// Runs the command.
///
/// # Errors
/// The file or the server cannot be used, or the call is refused.
pub(super) async fn run(options: &Options, args: Memory) -> Result<(), Failure> {
    match args.what {
        MemoryCommand::List(list) => list_facts(options, list.search.as_deref()).await,
        MemoryCommand::Forget(forget) => delete_facts(options, forget).await,
    }
}

async fn list_facts(options: &Options, search: Option<&str>) -> Result<(), Failure> {
    let columns = "space, key, value, confidence, source_seq, updated_at";
    let query = match search {
        None => format!("SELECT {columns} FROM memories ORDER BY space, key"),
        Some(words) => {
            let words = words.replace('\'', "''");
            let rank = format!("fts_rank(key || ' ' || value, '{words}')");
            format!(
                "SELECT {columns} FROM memories WHERE {rank} > 0 ORDER BY {rank} DESC, space, key"
            )
        }
    };
    sql::list(options, &query, "no facts").await
}

async fn delete_facts(
    options: &Options,
    Forget { space, keys, all }: Forget,
) -> Result<(), Failure> {
    let abide = connect(options, Access::Write).await?;
    let mut forgotten = 0;
    loop {
        let keys = (!all).then(|| keys.clone());
        let call = ForgetMemories { keys, ..ForgetMemories::new(&space) };
        let done = abide.call(call).await?.into_inner();
        forgotten += done.forgotten;
        if !(all && done.more) {
            break;
        }
    }
    abide.close().await;
    if options.json {
        print_json(&serde_json::json!({"forgotten": forgotten}))
    } else {
        print_line(format!("{} forgotten", pluralize(forgotten as u64, "fact")))
    }
}
