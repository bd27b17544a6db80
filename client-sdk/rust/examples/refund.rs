//! A refund that survives a crash.
//!
//! ```sh
//! cargo run -p abide-client --example refund -- agents.db
//! ```
//!
//! The program stops in the middle of the refund. Kill it there (Ctrl-C or `kill -9`) and start it again. The bank has
//! paid, but the program does not know it, and the tool must not run twice: the step returns `UnknownOutcome`. Record what
//! happened (`refund agents.db settle`), and start the program once more.
//!
//! With the effect `idempotent` as second argument the tool runs again instead. No server is needed: `ABIDE_BINARY`
//! names the program `abide`, or it is on the `PATH`. `tests/process/steps.rs` kills this program.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{Write as _, stdin};

use abide_client::arguments::{Outcome, SettleToolCall};
use abide_client::rows::Effect;
use abide_client::{Abide, ToolError};
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = args.next().ok_or("usage: refund FILE [EFFECT | settle]")?;
    let mode = args.next().unwrap_or_else(|| Effect::AtMostOnce.to_string());

    let abide = Abide::open_shared(&file).await?;
    if mode == "settle" {
        let settle = SettleToolCall::new("order-8812/refund", Outcome::Succeeded);
        abide.call(settle.result(json!("receipt 7")).evidence(json!("bank statement"))).await?;
        abide.close().await;
        return Ok(());
    }
    let effect: Effect = serde_json::from_value(mode.into())?;

    let session = abide.session("support").id("order-8812").await?;
    session.message("user", "Please refund order 8812.").key("request").await?;
    let receipt = session
        .tool("refund", json!({"order": 8812}), "refund")
        .effect(effect)
        .lease(std::time::Duration::from_secs(1))
        .run(|args: Value| pay(file.clone(), args))
        .await;
    match receipt {
        Ok(receipt) => {
            session.message("assistant", format!("It is done: {receipt}")).key("answer").await?;
            println!("{receipt}");
        }
        Err(error) => println!("{error}\n{}", error.hint().unwrap_or_default()),
    }
    abide.close().await;
    Ok(())
}

/// The bank: its ledger is a file.
async fn pay(file: String, args: Value) -> Result<String, ToolError> {
    let mut ledger = OpenOptions::new().append(true).create(true).open(file + ".ledger")?;
    writeln!(ledger, "refund of order {}", args["order"])?;
    ledger.sync_all()?;
    println!("The bank has paid. Press Enter to go on, or kill this program.");
    // In a thread, so that the heartbeats of the lease go on.
    tokio::task::spawn_blocking(|| stdin().read_line(&mut String::new())).await??;
    Ok("receipt 1".to_owned())
}
