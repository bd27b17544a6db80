//! `report`: writes the tables and plots of pages from the records of one run, so that no figure is typed by hand.

mod contenders;
mod disks;
mod goals;
mod plots;
mod tables;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::marks;
use crate::plot::Plot;
use crate::record::{self, Record};
use crate::statistics::median;
pub(crate) use tables::{delta_table, open_table, reads_table, turns_table};

/// Options of `report`.
#[derive(Args, Debug)]
#[command(after_help = PARTS)]
pub(crate) struct Options {
    /// The records of a run: a file with one JSON object per line.
    #[arg(long)]
    from: PathBuf,
    /// A page; its marked parts are replaced, and the plots are written next to it. Without one, all parts are printed.
    #[arg(long)]
    page: Vec<PathBuf>,
}

const PARTS: &str = "\
A part of a page is between two comments, which name it:
  <!-- abide-bench report goals: begin -->
  <!-- abide-bench report goals: end -->
Parts: report machine, goals, turns, peers, reads, delta, open.
In a line: report turns-embedded-64, the turns per second of that contender and number of sessions.";

/// Every name of a part starts with this.
const OURS: &str = "report ";

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let records = record::read(&options.from)?;
    contenders::check(&records)?;
    // Figures of several runs do not compare.
    describe_machine(&records)?;
    if options.page.is_empty() {
        for part in ["machine", "goals", "turns", "peers", "reads", "delta", "open"] {
            println!("{}\n", part_text(part, &records)?);
        }
    }
    for page in &options.page {
        write_page(page, &records)?;
    }
    Ok(())
}

/// Replaces the parts of a page.
fn write_page(page: &Path, records: &[Record]) -> Result<(), String> {
    let mut text =
        std::fs::read_to_string(page).map_err(|why| format!("{}: {why}", page.display()))?;
    let names: Vec<String> = marks::part_names(&text)
        .into_iter()
        .filter(|name| name.starts_with(OURS))
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        return Err(format!("{}: no part is marked", page.display()));
    }
    let mut plots = Vec::new();
    for name in names {
        let part = name.trim_start_matches(OURS);
        let replaced = match find_figure(part, records) {
            Some(figure) => figure?,
            None => format!("\n{}\n", part_text(part, records)?),
        };
        text = marks::replace(&text, &name, &replaced)?;
        plots.extend(plots_of(part, records));
    }
    for (file, plot) in plots {
        let path = page.with_file_name(file);
        std::fs::write(&path, plot.svg()).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    std::fs::write(page, text).map_err(|why| format!("{}: {why}", page.display()))
}

/// The Markdown of a part.
fn part_text(part: &str, records: &[Record]) -> Result<String, String> {
    let text = match part {
        "machine" => describe_machine(records)?,
        "goals" => goals::table(records),
        "turns" => turns_table(records),
        "peers" => tables::peers_table(records),
        "reads" => reads_table(records),
        "delta" => delta_table(records),
        "open" => open_table(records),
        _ => return Err(format!("there is no part `{OURS}{part}`; {PARTS}")),
    };
    let plots = plots_of(part, records);
    let images = plots.iter().map(|(file, plot)| format!("\n\n![{}]({file})", plot.title));
    Ok(format!("{text}{}", images.collect::<String>()))
}

fn plots_of(part: &str, records: &[Record]) -> Vec<(&'static str, Plot)> {
    match part {
        "peers" => vec![("performance-peers.svg", plots::peers_plot(records))],
        "reads" => vec![("performance-reads.svg", plots::reads_plot(records))],
        "open" => vec![("performance-open.svg", plots::open_plot(records))],
        _ => Vec::new(),
    }
}

/// A single figure for a line of text: `turns-embedded-64`. `None` if the name is that of a part.
fn find_figure(name: &str, records: &[Record]) -> Option<Result<String, String>> {
    let (contender, sessions) = name.strip_prefix("turns-")?.rsplit_once('-')?;
    let sessions: usize = sessions.parse().ok()?;
    let found = tables::turns_of(records, contender, sessions).map(|run| run.turns_per_second);
    let rate = median(found);
    Some(if rate.is_finite() {
        Ok(tables::with_commas(rate))
    } else {
        Err(format!("no run of {contender} with {sessions} sessions"))
    })
}

fn describe_machine(records: &[Record]) -> Result<String, String> {
    let mut texts = records.iter().filter_map(|record| match record {
        Record::Machine { text } => Some(text),
        _ => None,
    });
    let text = texts.next().ok_or("the records do not describe the machine")?;
    if texts.next().is_some() {
        return Err("the records are of several runs; figures of one run are compared".to_owned());
    }
    Ok(text.clone())
}
