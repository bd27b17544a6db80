//! The document: tables, plots, the machine, and the command that made them.

use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};

use crate::plot::Plot;
use crate::statistics::thousands;

/// What one part found.
pub(crate) struct Section {
    pub(crate) number: u8,
    pub(crate) title: &'static str,
    /// Markdown.
    pub(crate) text: String,
    /// By file name.
    pub(crate) plots: Vec<(&'static str, Plot)>,
}

/// A Markdown table; all columns but the first are figures.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
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

/// A figure with so many digits behind the point.
pub(crate) fn figure(figure: f64, digits: usize) -> String {
    if figure.abs() >= 1_000.0 { thousands(figure) } else { format!("{figure:.digits$}") }
}

/// A count with its thousands apart.
pub(crate) fn count(count: usize) -> String {
    thousands(count as f64)
}

/// The document of some sections.
pub(crate) fn document(machine: &Machine, sections: &[Section], quick: bool) -> String {
    let mut text = String::from("# Live queries, measured\n\n");
    let mut command: Vec<String> = std::env::args().skip(1).collect();
    // The folder of the databases says nothing to a reader.
    if let Some(at) = command.iter().position(|word| word == "--dir") {
        command.drain(at..command.len().min(at + 2));
    }
    let _ = writeln!(
        text,
        "Made by `cargo run --release -p abide-bench -- {}` in one run on one machine. Another \
         machine gives other figures; compare figures of the same run only.\n\n{}\n",
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

/// Writes the document and its plots into a folder.
pub(crate) fn write(document: &str, sections: &[Section], folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (file, plot) in sections.iter().flat_map(|section| &section.plots) {
        std::fs::write(folder.join(file), plot.svg())?;
    }
    std::fs::write(folder.join("live.md"), document)
}

/// What it was measured on, as far as the system tells.
pub(crate) struct Machine(String);

impl Machine {
    /// In Markdown, a line each.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// As it is now: before the measurements, for they are a load themselves.
    pub(crate) fn read() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let of = |path: &str, name: &str| {
            let text = read(path);
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let processor = of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
        let kib = of("/proc/meminfo", "MemTotal");
        let kib = kib.and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
        let load = read("/proc/loadavg");
        Machine(format!(
            "- Machine: {processor}, {cores} cores, {:.0} GiB, {} {}; load {} when it began\n\
             - Build: {}, SQLite {}",
            kib / f64::from(1 << 20),
            std::env::consts::OS,
            read("/proc/sys/kernel/osrelease").trim(),
            load.split(' ').next().unwrap_or("unknown"),
            if cfg!(debug_assertions) { "debug, whose figures mean nothing" } else { "release" },
            rusqlite::version(),
        ))
    }
}
