//! A reducer with a bug, which writes a row that refers to nothing.
//!
//! References are held to at COMMIT, where SQLite says that one is broken and not by whom. When that
//! first came up, a whole commit was refused for one call of it: callers paid for each other. Now each
//! call of such a commit is run alone.

use std::sync::Arc;

use abide_engine::{Engine, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Code, Context, Module, Seq, reducer, table};
use serde_json::json;

use crate::world::World;

/// A note on a session.
#[table(name = "notes")]
pub(crate) struct Note {
    /// Its number.
    #[column(key)]
    pub(crate) id: i64,
    /// The session.
    #[column(references = "sessions(id)")]
    pub(crate) session_id: String,
}

/// Notes something on a session, without looking whether there is one.
#[reducer]
pub(crate) fn note_blindly(ctx: &mut Context<'_>, session_id: String) -> Result<Note, Abort> {
    ctx.insert(Note { id: 0, session_id })
}

#[test]
fn a_broken_reference_costs_its_own_call_only() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new();
        world.close();
        let notes = Module::new("notes").table::<Note>().reducer(note_blindly::definition());
        let mut modules = abide_reducers::modules();
        modules.push(notes);
        let engine = Engine::open(world.path(), world.config(modules)).unwrap();
        let caller = Caller::new("local");
        let session = json!({"agent": "a", "id": "s1"});
        engine.call(&caller, "create_session", &session, None).await.unwrap();

        // All wait before the writer looks: this thread polls them one after the other.
        let engine = Arc::new(engine);
        let calls = (0..40).map(|nth| {
            let engine = Arc::clone(&engine);
            let session_id = if nth % 4 == 3 { "nobody" } else { "s1" };
            async move {
                let (caller, args) = (Caller::new("local"), json!({"session_id": session_id}));
                engine.call(&caller, "note_blindly", &args, None).await
            }
        });
        let answers = futures_util::future::join_all(calls).await;
        for (nth, answer) in answers.iter().enumerate() {
            match answer {
                Ok(_) => assert_ne!(nth % 4, 3, "{nth} refers to nothing"),
                Err(refusal) => {
                    assert_eq!(nth % 4, 3, "{nth}: {refusal}");
                    assert_eq!(refusal.code, Code::Conflict);
                    assert_eq!(refusal.detail, "FOREIGN KEY constraint failed");
                }
            }
        }
        let seqs = answers.iter().flatten().map(|done| done.seq);
        assert_eq!(seqs.max(), Some(Seq(31)), "what was refused took no place in the log");
        engine.close();
        let events = verify_file(&world.path(), &mut |_| {}).unwrap().events;
        assert_eq!(events, Seq(31));
    });
}
