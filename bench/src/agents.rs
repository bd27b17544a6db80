//! The overhead of an agent besides its model: the time of a step, many concurrent runs in one process, and the
//! latency of a token from the model to a subscriber. Real time, a real file, and a model that only waits.

pub(crate) mod concurrent_runs;
mod fixture;
mod model;
mod options;
mod steps;
mod tokens;

use crate::live::report::Machine;
pub(crate) use options::Options;

/// The marks around the table in the document.
const BEGINS: &str = "<!-- abide-bench agents: begin -->";
const ENDS: &str = "<!-- abide-bench agents: end -->";

pub(crate) fn run(options: &Options) {
    let machine = Machine::read();
    let crowd = if options.quick { 50 } else { options.crowd };
    eprintln!("steps …");
    let steps = steps::measure(options);
    eprintln!("crowd …");
    let crowd = concurrent_runs::in_a_process(options, crowd);
    eprintln!("tokens …");
    let tokens = tokens::measure(options);
    let text = format!(
        "Made by `cargo run --release -p abide-bench -- agents --out docs/agents.md` in one run \
         on one shared machine, with the load shown below.\n\n{}\n\n{steps}\n\n{crowd}\n\n{tokens}\n",
        machine.text(),
    );
    println!("{text}");
    if let Some(out) = &options.out {
        let document = std::fs::read_to_string(out).expect("the document can be read");
        let written = between_marks(&document, &text);
        std::fs::write(out, written).expect("the document can be written");
        eprintln!("written to {}", out.display());
    }
}

/// Replaces the text between the marks.
fn between_marks(document: &str, text: &str) -> String {
    let (before, rest) = document.split_once(BEGINS).expect("the document has the first mark");
    let (_, after) = rest.split_once(ENDS).expect("the document has the second mark");
    format!("{before}{BEGINS}\n{text}{ENDS}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_marks_changes() {
        let document = format!("before\n{BEGINS}\nold\n{ENDS}\nafter\n");
        let expected = format!("before\n{BEGINS}\nnew\n{ENDS}\nafter\n");
        assert_eq!(between_marks(&document, "new\n"), expected);
        assert_eq!(between_marks(&expected, "new\n"), expected);
    }
}
