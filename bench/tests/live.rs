//! Checks that `live` fills its tables and draws its plots. The values of such a short run are meaningless and not
//! checked.

use std::path::Path;
use std::process::Command;

const TABLES: [(&str, usize); 6] = [
    ("p50 µs", 5 * 3),
    ("bytes each", 5),
    ("bytes for each", 1),
    ("again / delta", 6 * 2),
    ("last delta p50 ms", 2),
    ("deltas/s", 2),
];
const PLOTS: [&str; 4] =
    ["live-routing.svg", "live-operators.svg", "live-delivery.svg", "live-deltas.svg"];

fn read(folder: &Path, file: &str) -> String {
    let text = std::fs::read_to_string(folder.join(file));
    text.unwrap_or_else(|why| panic!("{file}: {why}"))
}

/// The rows below the header with this column.
fn rows<'a>(document: &'a str, column: &str) -> Vec<Vec<&'a str>> {
    let lines = document.lines().skip_while(|line| {
        !line.starts_with('|') || !line.split('|').any(|cell| cell.trim() == column)
    });
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn a_quick_run_fills_every_table_and_draws_every_plot() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_abide-bench"))
        .args(["live", "--quick", "--out"])
        .arg(folder.path())
        .arg("--dir")
        .arg(folder.path())
        .output()
        .expect("the bench starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let document = read(folder.path(), "live.md");
    assert_eq!(
        document,
        String::from_utf8_lossy(&output.stdout),
        "the printed document equals the file"
    );
    for (column, expected) in TABLES {
        let rows = rows(&document, column);
        assert_eq!(rows.len(), expected, "rows below {column:?} in\n{document}");
        for cell in rows.iter().flat_map(|row| &row[1..]) {
            let figure = cell.replace(' ', "").parse::<f64>();
            assert!(figure.is_ok_and(f64::is_finite), "{cell:?} below {column:?}");
        }
    }
    for file in PLOTS {
        assert!(document.contains(&format!("]({file})")), "{file} is not in the document");
        let plot = read(folder.path(), file);
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"), "{file}");
        assert!(plot.contains("<circle ") && !plot.contains("NaN"), "{file}");
    }
}

#[test]
fn one_part_alone_writes_files_only_with_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_abide-bench"))
        .args(["live", "--quick", "--only", "2"])
        .current_dir(folder.path())
        .output()
        .expect("the bench starts");
    let document = String::from_utf8_lossy(&output.stdout);
    assert!(
        document.contains("## 2.") && !document.contains("## 1.") && !document.contains("## 3.")
    );
    let left = std::fs::read_dir(folder.path()).expect("the folder exists").count();
    assert_eq!(left, 0, "the databases are removed, and nothing is written");
}
