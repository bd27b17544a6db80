//! The earlier messages of a session, as a conversation shows them.

use abide_client::rows::AgentState;
use abide_client::{Abide, Seq};
use serde_json::Value;

use super::super::markdown::Markdown;
use super::super::view::result_line;
use crate::failure::Failure;
use crate::output::print_line;
use crate::printable::Printable;
use crate::terminal::Terminal;

/// Shows at most `max` messages up to an event of the log, the newest ones.
///
/// # Errors
/// The query is refused, or the output cannot be written.
pub(super) async fn show(
    abide: &Abide,
    session_id: &str,
    until: Option<Seq>,
    max: usize,
) -> Result<(), Failure> {
    let sql = "SELECT * FROM agent_state WHERE session_id = :id AND kind IN ('message', 'partial') \
               AND seq <= :until ORDER BY id DESC LIMIT :most";
    let mut entries: Vec<AgentState> = abide
        .sql(sql)
        .param("id", session_id)
        .param("until", until.map_or(i64::MAX, |seq| seq.0))
        // One more than is shown, to know whether there are more.
        .param("most", max as i64 + 1)
        .fetch()
        .await?;
    let terminal = Terminal::from_stdout();
    if entries.len() > max {
        entries.truncate(max);
        print_line(terminal.dim("… earlier messages:  /history  shows them"))?;
    }
    for entry in entries.iter().rev() {
        show_entry(terminal, entry)?;
    }
    Ok(())
}

fn show_entry(terminal: Terminal, entry: &AgentState) -> Result<(), Failure> {
    let text = entry.content.as_deref().unwrap_or_default();
    let data = entry.data.as_ref().map(|data| data.value()).unwrap_or_default();
    match entry.role.as_str() {
        "user" => print_line(terminal.bold(format!("› {text}"))),
        "tool" => print_line(result_line(text, &data).render(terminal)),
        "assistant" => {
            if !text.is_empty() {
                let mut markdown = Markdown::default();
                print_line(if terminal.styled {
                    markdown.push(text) + markdown.end()
                } else {
                    Printable::from(text)
                })?;
            }
            for call in data["calls"].as_array().into_iter().flatten() {
                let name = call["name"].as_str().unwrap_or_default();
                let arguments = call["arguments"].as_str().unwrap_or_default();
                let line = format!("→ {name} {}", compact_json(arguments));
                print_line(terminal.dim(Printable::line(&line)))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The text of arguments as a run shows it: compact JSON.
fn compact_json(text: &str) -> String {
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| value.to_string())
}
