//! A buggy reducer that writes a row with a dangling reference.
//!
//! References are deferred. SQLite would check them when it commits, which is after the answers, and
//! does not report which call broke one. So each group is checked before it is written to the
//! journal, and each call of a group with a broken reference runs alone.

use std::sync::Arc;

use abide_engine::{Engine, verify_file};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Code, Context, Module, Seq, reducer, table};
use abide_tests::world::World;
use serde_json::json;

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

/// Writes a note on a session without checking that the session exists.
#[reducer]
pub(crate) fn note_blindly(ctx: &mut Context<'_>, session_id: String) -> Result<Note, Abort> {
    ctx.insert(Note { id: 0, session_id })
}

#[test]
fn a_broken_reference_affects_its_own_call_only() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(abide_reducers::modules);
        world.close();
        let notes = Module::new("notes").table::<Note>().reducer(note_blindly::definition());
        let mut modules = abide_reducers::modules();
        modules.push(notes);
        let engine = Engine::open(world.path(), world.config(modules)).unwrap();
        let caller = Caller::new("local");
        let session = json!({"agent": "a", "id": "s1"});
        engine.call(&caller, "create_session", &session, None).await.unwrap();

        // All calls wait before the writer looks: this thread polls them one after the other.
        let engine = Arc::new(engine);
        let calls = (0..40).map(|nth| {
            let engine = Arc::clone(&engine);
            let session_id = if nth % 4 == 3 { "noname" } else { "s1" };
            async move {
                let caller = Caller::new("local");
                let args = json!({"session_id": session_id});
                engine.call(&caller, "note_blindly", &args, None).await
            }
        });
        let answers = futures_util::future::join_all(calls).await;
        for (nth, answer) in answers.iter().enumerate() {
            match answer {
                Ok(_) => assert_ne!(nth % 4, 3, "{nth} has a dangling reference"),
                Err(refusal) => {
                    assert_eq!(nth % 4, 3, "{nth}: {refusal}");
                    assert_eq!(refusal.code, Code::Conflict);
                    assert_eq!(refusal.detail, "FOREIGN KEY constraint failed");
                }
            }
        }
        let seqs = answers.iter().flatten().map(|done| done.seq);
        assert_eq!(seqs.max(), Some(Seq(31)), "refused calls are not in the log");
        engine.close();
        let events =
            verify_file(&world.path(), abide_reducers::modules(), &mut |_| {}).unwrap().events;
        assert_eq!(events, Seq(31));
    });
}
