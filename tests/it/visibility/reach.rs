//! The access of reducers of restricted callers: the same attacks as on queries, compared
//! with the same rules in plain Rust. A row that no policy shows does not exist for a reducer,
//! whichever access it uses.

use abide_reducers::Policy;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Abort, Code, Context, Module, Refusal, Value, reducer};
use abide_tests::world::{World, run};
use serde_json::{Value as JsonValue, json};

use super::copy::AllRows;
use super::desk::{self, MARK};
use super::{RandomRun, caller, said_nothing, world};

/// Callers of non-built-in reducers: `app`s and an admin of a tenant.
fn attackers() -> Vec<Caller> {
    vec![
        caller("ann", "app", &["a"], &[]),
        caller("bob", "app", &["b", "c"], &[]),
        caller("eve", "app", &["b"], &[("tenant", "a"), ("team", "red")]),
        caller("sub", "admin", &["*"], &[("tenant", "b")]),
    ]
}

async fn call(
    world: &World,
    who: &Caller,
    reducer: &str,
    args: JsonValue,
) -> Result<JsonValue, Refusal> {
    let done = world.engine().call(who, reducer, &args, None).await;
    let output = done.map(|done| serde_json::from_str(&done.result).unwrap());
    if let Err(refusal) = &output {
        said_nothing(reducer, refusal);
    }
    output
}

/// Changes the condition of a policy by a touch, whose row is written only at the end of the
/// commit.
#[reducer]
fn narrow_by_touch(ctx: &mut Context<'_>, condition: String) -> Result<(), Abort> {
    let policy = ctx
        .without_policies(|ctx| ctx.get::<Policy>(("sessions", "app", "default")))?
        .expect("the policy was set");
    ctx.touch(Policy { condition: Some(condition), ..policy })
}

/// A reducer that touches a policy restricts the next call of the same transaction, like one that
/// updates it.
#[test]
fn a_touched_policy_applies_to_the_next_call() {
    let mut world = World::new(abide_reducers::modules);
    world.close();
    let mut modules = abide_reducers::modules();
    modules.push(Module::new("touch").reducer(narrow_by_touch::definition()));
    world.open_with(world.config(modules));
    run(async {
        world.session("s").await;
        let all = json!({"table": "sessions", "role": "app", "condition": "1"});
        world.call("set_policy", all).await.unwrap();
        let app = caller("ann", "app", &[], &[]);
        let batch = async |condition: &str| {
            let say = json!({"session_id": "s", "role": "user", "content": "hi"});
            let calls = [
                BatchCall { reducer: "append_message".to_owned(), args: say.clone() },
                BatchCall {
                    reducer: "narrow_by_touch".to_owned(),
                    args: json!({"condition": condition}),
                },
                BatchCall { reducer: "append_message".to_owned(), args: say },
            ];
            let done = world.engine().batch(&app, &calls, None).await;
            done.map_err(|refusal| (refusal.code, refusal.batch_position))
        };
        batch("id = 's'").await.unwrap();
        assert_eq!(batch("0").await.unwrap_err(), (Code::NotFound, Some(3)));
        batch("1").await.expect("the narrowing batch was rolled back");
    });
}

/// The code of a refusal; `None` if the call succeeded.
fn code(output: &Result<JsonValue, Refusal>) -> Option<Code> {
    output.as_ref().err().map(|refusal| refusal.code)
}

/// One call of a restricted caller, compared with what the rows permit.
pub(super) async fn attack(play: &mut RandomRun) {
    let attackers = attackers();
    let who = play.random.pick(&attackers).clone();
    let id = 1 + play.random.below(8) as i64;
    let tenant = *play.random.pick(&["a", "b", "c"]);
    let owner = *play.random.pick(&["ann", "bob", "tom"]);
    let before = AllRows::read(&play.world, None).await;
    let notes = before.reachable_rows("notes", &who);
    let note = notes.iter().find(|note| note["id"] == id);
    let is_scoped = !who.scope().is_empty();
    let world = &play.world;
    match play.random.below(6) {
        0 => {
            let output = call(world, &who, "read_note", json!({"id": id})).await;
            match note {
                Some(note) => assert_eq!(&output.unwrap(), note, "{who:?}"),
                None => assert_eq!(code(&output), Some(Code::NotFound), "{who:?} {id}"),
            }
        }
        1 => {
            let args = json!({"tenant": tenant, "from": 1});
            let output = call(world, &who, "list_notes", args).await.unwrap();
            let mut of_tenant: Vec<&JsonValue> =
                notes.iter().filter(|note| note["tenant"] == tenant).collect();
            of_tenant.sort_by_key(|note| note["id"].as_i64());
            assert_eq!(output["count"], of_tenant.len(), "{who:?} {tenant}");
            let page: Vec<&JsonValue> = of_tenant.into_iter().skip(1).take(2).collect();
            assert_eq!(output["notes"], json!(page), "{who:?} {tenant}");
        }
        2 => {
            let args = json!({"id": id, "tenant": tenant, "owner": owner});
            let output = call(world, &who, "overwrite_note", args).await;
            let new = new_note(id, tenant, owner, 1);
            let expected = match note {
                None => Some(Code::NotFound),
                Some(_) if is_scoped || !before.may_write_note(&who, &new) => Some(Code::Denied),
                Some(_) => None,
            };
            assert_eq!(code(&output), expected, "{who:?} overwrites {id} of {tenant}");
        }
        3 => {
            let output = call(world, &who, "tear_note", json!({"id": id})).await;
            let expected = match note {
                None => Some(Code::NotFound),
                Some(_) => is_scoped.then_some(Code::Denied),
            };
            assert_eq!(code(&output), expected, "{who:?} tears {id}");
        }
        4 => {
            let id = if play.random.one_in(2) { 0 } else { id };
            let n = *play.random.pick(&[1, 3]);
            let args = json!({"id": id, "tenant": tenant, "owner": owner, "n": n});
            let output = call(world, &who, "add_note", args).await;
            let new = new_note(id, tenant, owner, n);
            let taken = before
                .reachable_rows("notes", &Caller::local())
                .iter()
                .any(|note| note["id"] == id);
            // Which of the two errors it gets must not depend on invisible rows.
            let expected = if is_scoped || !before.may_write_note(&who, &new) {
                Some(Code::Denied)
            } else {
                taken.then_some(Code::Conflict)
            };
            assert_eq!(code(&output), expected, "{who:?} adds {id} of {tenant}");
        }
        _ => {
            let session = format!("s{}", play.random.below(5));
            remark(&play.world, &who, &before, &session).await;
        }
    }
}

/// A call that refers to a session, which must be one that the caller can access.
async fn remark(world: &World, who: &Caller, before: &AllRows, session: &str) {
    let output = call(world, who, "add_remark", json!({"session_id": session})).await;
    let sessions = before.reachable_rows("sessions", who);
    if sessions.iter().any(|it| it["id"] == session) {
        return;
    }
    let bounded = Some(Code::NotFound);
    let free = before.reachable_rows("sessions", &Caller::local()).len();
    // If nothing restricts its view of sessions, the database reports the missing row.
    let unbounded = sessions.len() == free && who.scope().is_empty();
    assert!(code(&output) == bounded || unbounded, "{who:?} at {session}: {output:?}");
}

fn new_note(id: i64, tenant: &str, owner: &str, n: i64) -> Vec<(&'static str, Value)> {
    let id = if id == 0 { i64::MAX } else { id };
    vec![("id", id.into()), ("tenant", tenant.into()), ("owner", owner.into()), ("n", n.into())]
}

/// A desk with two notes; a policy lets ann access the first.
async fn furnish(world: &World) -> Caller {
    for (id, owner) in [(1, "ann"), (2, "bob")] {
        let note = json!({"id": id, "tenant": "a", "session_id": null, "owner": owner,
            "secret": format!("{MARK} {id}"), "body": format!("{MARK} {id}"), "n": id});
        world.call("put_note", note).await.unwrap();
    }
    let policy = json!({"table": "notes", "role": "app", "condition": "owner = :caller_id",
        "hidden": ["secret"]});
    world.call("set_policy", policy).await.unwrap();
    caller("ann", "app", &[], &[])
}

/// Regression test: a policy restricted queries, but a reducer read and wrote past it.
#[test]
fn a_hidden_row_gets_the_same_error_as_an_unknown_one() {
    let world = world();
    run(async {
        let ann = furnish(&world).await;
        let calls = |id: i64| {
            [
                ("read_note", json!({"id": id})),
                ("overwrite_note", json!({"id": id, "tenant": "a", "owner": "ann"})),
                ("tear_note", json!({"id": id})),
                ("drop_note", json!({"id": id})),
            ]
        };
        for ((reducer, hidden), (_, absent)) in calls(2).into_iter().zip(calls(9)) {
            let hidden = call(&world, &ann, reducer, hidden).await.map_err(|why| why.to_string());
            let absent = call(&world, &ann, reducer, absent).await.map_err(|why| why.to_string());
            let alike =
                |output: &Result<JsonValue, String>| format!("{output:?}").replace('9', "2");
            assert_eq!(alike(&hidden), alike(&absent), "{reducer}");
        }
        assert_eq!(world.rows("SELECT * FROM notes WHERE id = 2 AND owner = 'bob'").await.len(), 1);
        let output =
            call(&world, &ann, "list_notes", json!({"tenant": "a", "from": 0})).await.unwrap();
        assert_eq!((&output["count"], output["notes"].as_array().unwrap().len()), (&json!(1), 1));
        // Nor can it give a row away, or create one in another's name.
        let away = json!({"id": 1, "tenant": "a", "owner": "bob"});
        let output = call(&world, &ann, "overwrite_note", away).await.unwrap_err();
        assert_eq!(output.detail, "no policy permits the role app this row of notes");
        for id in [0, 7] {
            let forged = json!({"id": id, "tenant": "a", "owner": "bob", "n": 1});
            assert_eq!(code(&call(&world, &ann, "add_note", forged).await), Some(Code::Denied));
        }
        assert_eq!(world.rows("SELECT * FROM notes").await.len(), 2);
    });
}

/// Hidden columns are not in the result of a reducer, of its retry, or of a batch; the log has
/// them.
#[test]
fn a_result_has_no_hidden_column() {
    let world = world();
    run(async {
        let ann = furnish(&world).await;
        let engine = world.engine();
        let output = call(&world, &ann, "read_note", json!({"id": 1})).await.unwrap();
        assert_eq!((&output["secret"], &output["owner"]), (&JsonValue::Null, &json!("ann")));
        let output =
            call(&world, &ann, "list_notes", json!({"tenant": "a", "from": 0})).await.unwrap();
        assert_eq!(output["notes"][0].get("secret"), None);
        let args = json!({"id": 1, "tenant": "a", "owner": "ann"});
        for duplicate in [false, true] {
            let done = engine.call(&ann, "overwrite_note", &args, Some("r1")).await.unwrap();
            assert_eq!((done.duplicate, done.result.contains("secret")), (duplicate, false));
        }
        let outcome = world.rows("SELECT outcome FROM events ORDER BY seq DESC LIMIT 1").await;
        assert!(format!("{outcome:?}").contains("secret"), "{outcome:?}");
    });
}

/// A policy applies to later calls of the same commit, and a log written under policies replays to
/// the same rows, however it is divided into commits.
#[test]
fn a_replay_has_the_same_restrictions() {
    let world = world();
    let mut world = run(async {
        let ann = furnish(&world).await;
        let mut play = RandomRun::new(7, world);
        for _ in 0..120 {
            let action = play.action();
            // A refused call leaves nothing to replay.
            let _ = play.world.call(&action.reducer, action.args).await;
            attack(&mut play).await;
        }
        let own = json!({"id": 0, "tenant": "a", "owner": "ann", "n": 3});
        // The last action of the play, allowed or not.
        let _ = call(&play.world, &ann, "add_note", own).await;
        play.world
    });
    let into = world.folder.path().join("again.db");
    world.close();
    let mut modules = abide_reducers::modules();
    modules.push(desk::module());
    abide_engine::replay(&world.path(), &into, modules, None, &mut |_| {}).unwrap();
}

/// A supervisor who sees no calls can still decide an approval that he sees, and an agent that sees
/// no approvals can still request one: consequences of a call do not depend on the caller's
/// visibility.
#[test]
fn consequences_of_a_call_ignore_policies() {
    let world = world();
    run(async {
        let agent = caller("x", "agent", &[], &[]);
        let chief = caller("y", "supervisor", &["*"], &[]);
        for (table, role) in [("approvals", "agent"), ("tool_calls", "supervisor")] {
            let none = json!({"table": table, "role": role, "condition": "0"});
            world.call("set_policy", none).await.unwrap();
        }
        let tool = json!({"name": "wire", "needs_approval": true});
        world.call("register_tool", tool).await.unwrap();
        world.call("create_session", json!({"agent": "x", "id": "s"})).await.unwrap();
        for id in ["c1", "c2"] {
            let ask =
                json!({"call_id": id, "session_id": "s", "tool_name": "wire", "arguments": {}});
            call(&world, &agent, "request_tool_call", ask).await.unwrap();
        }
        let decide = json!({"call_id": "c1", "decision": "approve"});
        assert_eq!(
            code(&call(&world, &agent, "decide_approval", decide.clone()).await),
            Some(Code::Denied)
        );
        call(&world, &chief, "decide_approval", decide).await.unwrap();
        assert_eq!(world.rows("SELECT 1 FROM tool_calls WHERE status = 'pending'").await.len(), 1);
        let cancel = json!({"call_id": "c2"});
        assert_eq!(
            code(&call(&world, &chief, "cancel_tool_call", cancel).await),
            Some(Code::NotFound)
        );
        call(&world, &chief, "cancel_session", json!({"session_id": "s"})).await.unwrap();
        let open = "SELECT 1 FROM tool_calls WHERE status <> 'cancelled'";
        assert_eq!(world.rows(open).await.len(), 0);
        let open = "SELECT 1 FROM approvals WHERE status = 'pending'";
        assert_eq!(world.rows(open).await.len(), 0);
    });
}

/// A caller that sees a run can end it with everything that belongs to it, visible or not. An
/// invisible run still occupies its session, without revealing anything else.
#[test]
fn a_run_is_ended_with_its_hidden_rows() {
    let world = world();
    run(async {
        let chief = caller("y", "admin", &["*"], &[("tenant", "t")]);
        let scope = json!({"tenant": "t"});
        world.call("register_tool", json!({"name": "wire"})).await.unwrap();
        world.call("register_agent", json!({"name": "x", "definition": {}})).await.unwrap();
        let session = json!({"agent": "x", "id": "s", "scope": scope});
        world.call("create_session", session).await.unwrap();
        world.call("start_run", json!({"session_id": "s", "id": "r1"})).await.unwrap();
        let ask = json!({"call_id": "c", "session_id": "s", "tool_name": "wire", "arguments": {}});
        world.call("request_tool_call", ask).await.unwrap();
        let hide = |table: &str, condition: &str| {
            world.call(
                "set_policy",
                json!({"table": table, "role": "admin", "condition": condition}),
            )
        };
        hide("tool_calls", "0").await.unwrap();
        hide("run_events", "0").await.unwrap();
        hide("runs", "0").await.unwrap();
        let again = json!({"session_id": "s", "id": "r2"});
        let output = call(&world, &chief, "start_run", again.clone()).await.unwrap_err();
        assert_eq!(
            (output.code, output.detail.as_str()),
            (Code::Conflict, "session s has a run"),
            "{output}"
        );
        let end = json!({"id": "r1"});
        let output = call(&world, &chief, "abort_run", end.clone()).await;
        assert_eq!(code(&output), Some(Code::NotFound));
        hide("runs", "1").await.unwrap();
        call(&world, &chief, "abort_run", end).await.unwrap();
        let open = "SELECT 1 FROM tool_calls WHERE status <> 'cancelled'";
        assert_eq!(world.rows(open).await.len(), 0);
        let output = "SELECT 1 FROM run_events WHERE kind = 'error'";
        assert_eq!(world.rows(output).await.len(), 1);
        call(&world, &chief, "start_run", again).await.unwrap();
    });
}

/// Permission to call does not depend on visibility: a policy that hides the roles excludes no
/// caller.
#[test]
fn a_hidden_role_still_counts() {
    let world = world();
    run(async {
        let role = json!({"name": "clerk", "reducers": ["read_note"]});
        world.call("set_role", role).await.unwrap();
        furnish(&world).await;
        let none = json!({"table": "roles", "role": "*", "condition": "0"});
        world.call("set_policy", none).await.unwrap();
        let clerk = caller("c", "clerk", &[], &[]);
        let output = call(&world, &clerk, "read_note", json!({"id": 2})).await.unwrap();
        assert_eq!(output["owner"], "bob");
    });
}
