//! Notes on sessions.

use abide::prelude::*;

/// A note on a session.
#[table(name = "notes", index(session_id))]
pub struct Note {
    /// Its number. A row that is inserted with 0 gets the next one.
    #[column(key)]
    pub id: i64,
    /// The session that it belongs to. The note is in the scope of this session.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// The text.
    pub body: String,
}

/// Adds a note to a session.
#[reducer]
pub fn add_note(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    body: String,
) -> Result<Note, Abort> {
    ctx.insert(Note { id: 0, session_id, body })
}

/// The module of the program.
pub fn module() -> Module {
    Module::new("notes").table::<Note>().reducer(add_note::definition())
}
