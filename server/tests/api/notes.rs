//! A toy module: notes in books. Its reducers generate no ids, so all results are predictable.

use abide_schema::reducer::{Context, Nullable};
use abide_schema::{Abort, Code, Module, Refusal, TextEnum, reducer, table};

/// The weight of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TextEnum)]
pub(crate) enum Weight {
    /// Light.
    Light,
    /// Heavy.
    Heavy,
}

/// One note.
#[table(name = "notes", index(book))]
pub(crate) struct Note {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// The book it is in.
    pub book: String,
    /// Its text.
    pub text: Option<String>,
    /// Its weight.
    pub weight: Weight,
}

/// Writes a note.
#[reducer]
pub(crate) fn write_note(
    ctx: &mut Context<'_>,
    book: String,
    text: Nullable<String>,
    weight: Option<Weight>,
) -> Result<Note, Abort> {
    ctx.insert(Note { id: 0, book, text: text.0, weight: weight.unwrap_or(Weight::Light) })
}

/// Changes a note's text.
#[reducer]
pub(crate) fn edit_note(ctx: &mut Context<'_>, id: i64, text: String) -> Result<Note, Abort> {
    let mut note = find(ctx, id)?;
    note.text = Some(text);
    ctx.update(&note)?;
    Ok(note)
}

/// Deletes a note.
#[reducer]
pub(crate) fn burn_note(ctx: &mut Context<'_>, id: i64) -> Result<(), Abort> {
    find(ctx, id)?;
    ctx.delete::<Note>(id)
}

/// Does nothing.
#[reducer]
pub(crate) fn nothing(_ctx: &mut Context<'_>) -> Result<(), Abort> {
    Ok(())
}

fn find(ctx: &mut Context<'_>, id: i64) -> Result<Note, Abort> {
    Ok(ctx
        .get::<Note>(id)?
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("there is no note {id}")))?)
}

pub(crate) fn module() -> Module {
    Module::new("notes")
        .table::<Note>()
        .reducer(write_note::definition())
        .reducer(edit_note::definition())
        .reducer(burn_note::definition())
        .reducer(nothing::definition())
}
