//! The contenders by the names in the records, and how they write a turn.

use crate::record::Record;

/// A contender.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// The requests of a turn.
    pub(super) turn: &'static str,
    /// Whether a turn is one durable request, instead of four.
    pub(super) at_once: bool,
    /// Color and dashes in plots.
    pub(super) color: usize,
    pub(super) dashed: bool,
}

/// The contender of Abide with which those that write turns in the same way are compared.
pub(super) fn ours(at_once: bool) -> &'static str {
    if at_once { "websocket-batch" } else { "websocket" }
}

const fn at_once(
    name: &'static str,
    label: &'static str,
    turn: &'static str,
    color: usize,
) -> Contender {
    Contender { name, label, turn, at_once: true, color, dashed: false }
}

const fn in_four(
    name: &'static str,
    label: &'static str,
    turn: &'static str,
    color: usize,
) -> Contender {
    Contender { name, label, turn, at_once: false, color, dashed: false }
}

/// All of them, in the order of tables.
pub(super) const CONTENDERS: [Contender; 9] = [
    at_once("websocket-batch", "Abide, WebSocket", "one batch of four calls", 0),
    at_once("postgresql", "PostgreSQL", "four INSERTs in one transaction", 1),
    Contender {
        name: "postgresql-pipeline",
        label: "PostgreSQL, pipelined",
        turn: "the same in one pipeline",
        at_once: true,
        color: 1,
        dashed: true,
    },
    at_once("openai-agents", "OpenAI Agents SDK, SQLiteSession", "one `add_items`", 3),
    at_once("langgraph", "LangGraph, SqliteSaver", "one `invoke`", 4),
    in_four("embedded", "Abide, embedded", "four awaited calls", 2),
    in_four("websocket", "Abide, WebSocket", "four awaited calls", 0),
    in_four("postgresql-calls", "PostgreSQL", "four transactions", 1),
    in_four("openai-agents-calls", "OpenAI Agents SDK, SQLiteSession", "four `add_items`", 3),
];

impl Contender {
    pub(super) fn is_ours(&self) -> bool {
        self.label.starts_with("Abide")
    }
}

/// Checks that the contenders of all records are known.
///
/// # Errors
/// A sentence with the first unknown name.
pub(super) fn check(records: &[Record]) -> Result<(), String> {
    for record in records {
        let Record::Turns(run) = record else { continue };
        if !CONTENDERS.iter().any(|contender| contender.name == run.contender) {
            return Err(format!("unknown contender `{}`", run.contender));
        }
    }
    Ok(())
}
