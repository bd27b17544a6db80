//! The document: tables, plots, the machine, and the command.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};

use crate::plot::Plot;
use crate::statistics::thousands;

/// The results of one part.
pub(crate) struct Section {
    pub(crate) number: u8,
    pub(crate) title: &'static str,
    /// Markdown.
    pub(crate) text: String,
    /// Plots by file name.
    pub(crate) plots: Vec<(&'static str, Plot)>,
}

/// A Markdown table; all columns except the first are right-aligned.
pub(crate) fn format_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A number with this many decimal places.
pub(crate) fn format_figure(figure: f64, digits: usize) -> String {
    if figure.abs() >= 1_000.0 { thousands(figure) } else { format!("{figure:.digits$}") }
}

/// A number with thousands separators.
pub(crate) fn format_count(count: usize) -> String {
    thousands(count as f64)
}

/// A document with these sections.
pub(crate) fn format_document(machine: &Machine, sections: &[Section], quick: bool) -> String {
    let mut text = String::from("# Live queries, measured\n\n");
    let mut command: Vec<String> = std::env::args().skip(1).collect();
    // Omit the folders, which are specific to the machine.
    for folder in ["--dir", "--out"] {
        if let Some(at) = command.iter().position(|word| word == folder) {
            command.drain(at..command.len().min(at + 2));
        }
    }
    let _ = writeln!(
        text,
        "Made by `cargo run --release -p abide-bench -- {}` in one run on one machine. \
         Another machine gives other figures; compare figures of the same run only.\n\n\
         A subscription to a [live query](live-sql.md) gets a delta for each commit that changes its \
         result. The *router* finds the subscriptions that a commit can affect: it looks the values \
         of the changed rows up among the parameters of the subscriptions. One such look-up is a \
         *probe*.\n\n{}\n",
        command.join(" "),
        machine.0,
    );
    if quick {
        text += "This was a quick run. It only shows that the benchmark works.\n\n";
    }
    for section in sections {
        let _ = writeln!(text, "## {}. {}\n\n{}\n", section.number, section.title, section.text);
        for (file, plot) in &section.plots {
            let _ = writeln!(text, "![{}]({file})\n", plot.title);
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Writes the document and its plots to a folder.
pub(crate) fn write_document(
    document: &str,
    sections: &[Section],
    folder: &Path,
) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (file, plot) in sections.iter().flat_map(|section| &section.plots) {
        std::fs::write(folder.join(file), plot.svg())?;
    }
    std::fs::write(folder.join("live.md"), document)
}

/// A description of the machine, as far as the system reports it.
pub(crate) struct Machine(String);

impl Machine {
    /// One Markdown line per property.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Reads the current state. Call it before the measurements, which are a load themselves.
    pub(crate) fn read() -> Machine {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let processor =
            read_property("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
        let kib = read_property("/proc/meminfo", "MemTotal")
            .and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok())
            .unwrap_or(0.0);
        let load = read_or_empty("/proc/loadavg");
        Machine(format!(
            "- Machine: {processor}, {cores} cores, {:.0} GiB, {} {}; load {} at the start\n\
             - Build: {}, SQLite {}",
            kib / f64::from(1 << 20),
            std::env::consts::OS,
            read_or_empty("/proc/sys/kernel/osrelease").trim(),
            load.split(' ').next().unwrap_or("unknown"),
            if cfg!(debug_assertions) { "debug (the figures are meaningless)" } else { "release" },
            rusqlite::version(),
        ))
    }
}

fn read_or_empty(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of the first line `NAME: VALUE` whose name starts like this.
fn read_property(path: &str, name: &str) -> Option<String> {
    let text = read_or_empty(path);
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}
