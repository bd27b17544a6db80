//! The table of figures.

/// The rows of a column of the table: name and value.
pub(super) type Figures = Vec<(String, String)>;

/// Returns a table with a row for each figure of any column, in the order of the first column that has it.
pub(super) fn to_markdown(columns: &[(&str, Figures)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(_, figures)| figures) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let titles: Vec<&str> = columns.iter().map(|(title, _)| *title).collect();
    let mut table =
        format!("| figure | {} |\n|---|{}\n", titles.join(" | "), "---:|".repeat(columns.len()));
    for name in names {
        let values = columns.iter().map(|(_, figures)| {
            figures.iter().find(|(other, _)| other == name).map_or("–", |(_, value)| value)
        });
        table += &format!("| {name} | {} |\n", values.collect::<Vec<_>>().join(" | "));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::to_markdown;

    #[test]
    fn a_figure_that_one_column_lacks_is_a_dash() {
        let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let columns = [
            ("now", vec![row("a", "1"), row("b", "2")]),
            ("v1", vec![row("b", "3"), row("c", "4")]),
        ];
        let expected = "| figure | now | v1 |\n|---|---:|---:|\n\
            | a | 1 | – |\n| b | 2 | 3 |\n| c | – | 4 |\n";
        assert_eq!(to_markdown(&columns), expected);
    }
}
