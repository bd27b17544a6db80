//! The rows of the specification's tables: `docs/agents.md` lists a test for each, and this test checks that they
//! exist.

use std::path::Path;

#[test]
fn every_row_of_the_table_has_its_test() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(agent.join("../docs/agents.md")).expect("it is there");
    let table = docs
        .split_once("## Events, errors and limits, with their tests")
        .expect("it has the table")
        .1;
    let table = table.split("\n## ").next().unwrap_or_default();
    let mut tests = 0;
    for cell in table.lines().filter(|line| line.starts_with('|')).flat_map(|it| it.split('`')) {
        let Some((file, name)) = cell.split_once(".rs::") else { continue };
        let source = std::fs::read_to_string(agent.join(format!("{file}.rs")));
        let source = source.unwrap_or_else(|why| panic!("agent/{file}.rs: {why}"));
        assert!(source.contains(&format!("fn {name}()")), "agent/{file}.rs has no test {name}");
        tests += 1;
    }
    assert!(tests > 30, "the table lists only {tests} tests");
}
