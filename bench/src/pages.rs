//! The measurement for the store's page size: the same embedded load with several sizes.

use std::time::Instant;

use abide_client::Abide;
use abide_engine::{Config, Engine, Tuning};
use clap::Args;
use comfy_table::{Table, presets};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::statistics::{median, thousands};

/// Options of `pages`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Number of rounds; each page size runs once per round.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of messages per run.
    #[arg(long, default_value_t = 40_000)]
    messages: usize,
    /// The folder for the files.
    #[arg(long, default_value = ".", value_parser = crate::disk::folder)]
    dir: std::path::PathBuf,
}

const SESSIONS: usize = 64;

pub(crate) fn run(options: &Options) {
    let runtime = Runtime::new().expect("a tokio runtime");
    let mut sizes: Vec<(u32, Vec<(f64, u64)>)> =
        [1024, 2048, 4096, 8192, 16384].map(|size| (size, Vec::new())).into();
    for _ in 0..options.rounds {
        for (size, runs) in &mut sizes {
            let dir = TempDir::new_in(&options.dir).expect("a folder for the files");
            let path = dir.path().join("abide.db");
            let mut config = Config::new(abide_reducers::modules());
            config.tuning = Tuning { page_bytes: *size, ..Tuning::default() };
            let engine = Engine::open(&path, config).expect("the engine opens");
            let rate = runtime.block_on(load(engine.clone(), options.messages));
            engine.close();
            runs.push((rate, std::fs::metadata(&path).map_or(0, |file| file.len())));
        }
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["page bytes", "calls/s", "file MB"]);
    for (size, runs) in &sizes {
        let rate = median(runs.iter().map(|(rate, _)| *rate));
        let megabytes = median(runs.iter().map(|(_, bytes)| *bytes as f64 / 1e6));
        table.add_row([size.to_string(), thousands(rate), format!("{megabytes:.1}")]);
    }
    println!("{table}");
}

async fn load(engine: Engine, messages: usize) -> f64 {
    let abide = Abide::embed(engine);
    let started = Instant::now();
    let tasks = (0..SESSIONS).map(|session| {
        let abide = abide.clone();
        tokio::spawn(async move {
            let id = format!("s_{session}");
            let args = json!({"agent": "bench", "id": id});
            abide.call_by_name("create_session", args).await.expect("a session");
            for _ in 0..messages / SESSIONS {
                let args = json!({"session_id": id, "role": "user", "content": "m".repeat(350)});
                abide.call_by_name("append_message", args).await.expect("the call is done");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a session");
    }
    messages as f64 / started.elapsed().as_secs_f64()
}
