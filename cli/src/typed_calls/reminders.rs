//! Reminders of sessions.

use abide::prelude::*;

/// A reminder that is done does not change.
const DONE: &str = "CREATE TRIGGER reminders_done BEFORE UPDATE ON reminders
WHEN OLD.done
BEGIN SELECT RAISE(ABORT, 'conflict: the reminder is done'); END";

/// A reminder of a session.
#[table(name = "reminders", index(due_at, where = "done = 0"), trigger = DONE)]
pub struct Reminder {
    /// Its number.
    #[column(key)]
    pub id: i64,
    /// The session that it belongs to.
    #[column(references = "sessions(id)")]
    pub session_id: String,
    /// When it is due.
    pub due_at: Micros,
    /// Whether its time has come.
    pub done: bool,
}

/// Sets a reminder.
#[reducer]
pub fn set_reminder(
    ctx: &mut Context<'_>,
    #[id(Session)] session_id: String,
    /// Milliseconds from now.
    in_ms: i64,
) -> Result<Reminder, Abort> {
    let due_at = ctx.now.plus_ms(in_ms);
    ctx.insert(Reminder { id: 0, session_id, due_at, done: false })
}

/// Ends a reminder that is due. The engine calls it with the key and the time of the row, and so can a caller.
#[reducer]
pub fn end_reminder(ctx: &mut Context<'_>, id: i64, due_at: Micros) -> Result<Reminder, Abort> {
    let found = ctx.get::<Reminder>(id)?.filter(|it| !it.done && it.due_at == due_at);
    let Some(mut reminder) = found.filter(|it| it.due_at <= ctx.now) else {
        return Err(Refusal::new(Code::Conflict, format!("reminder {id} is not due")).into());
    };
    reminder.done = true;
    ctx.update(&reminder)?;
    Ok(reminder)
}

/// The module of the program.
pub fn module() -> Module {
    Module::new("reminders")
        .visible::<Reminder>(RowVisibility::InScope)
        .reducer(set_reminder::definition())
        .deadline::<Reminder>("due_at", "done = 0", end_reminder::definition())
}
