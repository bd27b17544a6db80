//! Reducers that fail internally: by a panic, or by an error that is not a refusal.
//!
//! A reducer that failed in a replay was once reported as `limit_exceeded` with an empty detail, as
//! if a limit had been exceeded.

use abide_engine::{Engine, replay};
use abide_schema::reducer::Caller;
use abide_schema::{Abort, Code, Context, Module, Seq, reducer};
use abide_tests::world::World;
use serde_json::json;

/// Panics if `fall` is set.
#[reducer]
pub(crate) fn stumble(_ctx: &mut Context<'_>, fall: bool) -> Result<bool, Abort> {
    assert!(!fall, "the floor was wet");
    Ok(fall)
}

mod later {
    use super::*;

    /// A broken version of the same reducer.
    #[reducer]
    pub(crate) fn stumble(_ctx: &mut Context<'_>, fall: bool) -> Result<bool, Abort> {
        Err(Abort::Broken(format!("fall is not used: {fall}").into()))
    }
}

#[test]
fn an_internal_failure_is_reported_and_affects_no_other_call() {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let path = world.path().with_file_name("stumble.db");
    let module = Module::new("stumble").reducer(stumble::definition());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let engine = Engine::open(&path, world.config(vec![module])).unwrap();
        let (caller, fall, stand) =
            (Caller::new("local"), json!({"fall": true}), json!({"fall": false}));
        let fallen = engine.call(&caller, "stumble", &fall, None);
        let standing = engine.call(&caller, "stumble", &stand, None);
        let (fallen, standing) = futures_util::future::join(fallen, standing).await;
        let refusal = fallen.unwrap_err();
        assert_eq!(refusal.code, Code::Internal);
        assert_eq!(refusal.detail, "stumble failed with an internal error");
        assert_eq!(standing.unwrap().seq, Seq(1));
        engine.close();
    });
    let module = Module::new("stumble").reducer(later::stumble::definition());
    let into = world.path().with_file_name("again.db");
    let error = replay(&path, &into, vec![module], None, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "event 1: stumble is refused in the replay: the reducer failed");
}
