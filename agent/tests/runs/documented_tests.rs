//! `docs/agent-rules.md` and `docs/programs.md` list rules with their tests. This test checks that the listed tests exist.

use std::path::Path;

#[test]
fn every_row_of_the_table_has_its_test() {
    check("agent-rules.md", "## Events, errors and limits", 30);
}

#[test]
fn every_rule_of_agents_has_its_test() {
    check("agent-rules.md", "# Rules of agents, with their tests", 150);
}

#[test]
fn every_rule_for_programs_has_its_test() {
    check("programs.md", "### Rules, with their tests", 24);
}

#[test]
fn every_rule_of_the_runtime_has_its_test() {
    check("agent-rules.md", "## The runtime", 58);
}

/// Checks that the tests in a table of a page exist, and that there are at least so many.
fn check(page: &str, heading: &str, least: usize) {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(agent.join("../docs").join(page)).expect("it is there");
    let table = page.split_once(heading).expect("it has the table").1;
    let table = if heading.starts_with("# ") {
        table
    } else {
        table.split("\n## ").next().unwrap_or_default()
    };
    let mut tests = 0;
    for cell in table.lines().filter(|line| line.starts_with('|')).flat_map(|it| it.split('`')) {
        let Some((file, name)) = cell.split_once(".rs::") else { continue };
        let source = std::fs::read_to_string(agent.join(format!("{file}.rs")));
        let source = source.unwrap_or_else(|why| panic!("agent/{file}.rs: {why}"));
        assert!(source.contains(&format!("fn {name}(")), "agent/{file}.rs has no test {name}");
        tests += 1;
    }
    assert!(tests >= least, "the table lists only {tests} tests");
}
