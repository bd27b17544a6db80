//! Facts that agents remember, and their vectors.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# save_memories
save_memories {"namespace":"support","scope":{"tenant":"a"},"facts":[{"key":"k","value":"new"},{"key":"new","value":"x"}]}
# forget_memories
forget_memories {"space":"support@tenant=a/"}
# embed_memories
embed_memories {"model":"m","vectors":[{"memory_id":1001,"seq":30,"vector":{"$blob":"AAAAAA=="}},{"memory_id":1002,"seq":30,"vector":{"$blob":"AAAAAA=="}}]}
"#;

#[test]
fn a_fact_replaces_the_one_with_its_key() {
    check(
        r#"
        save_memories namespace=support facts=[{"key":"language","value":"German","confidence":0.5},{"key":"city","value":"Köln"}]
        sql SELECT space, key, value, confidence, source_seq, seq FROM memories ORDER BY key
        save_memories namespace=support facts=[{"key":"language","value":"German","confidence":0.5}]
        save_memories namespace=support facts=[{"key":"language","value":"French","source_seq":1},{"key":"city","value":"Köln"}]
        save_memories namespace=other facts=[{"key":"language","value":"Dutch"}]
        sql SELECT space, key, value, confidence, source_seq, seq FROM memories ORDER BY space, key
        forget_memories space=support@/ keys=["language","nothing"]
        forget_memories space=support@/ keys=["language"]
        forget_memories space=support@/
        sql SELECT space, key FROM memories
        replay
        "#,
        expect![[r#"
            seq 1 {}
            ("support@/", "city", "Köln", 1.0, 1, 1) ("support@/", "language", "German", 0.5, 1, 1)
            seq 0 again {}
            seq 2 {}
            seq 3 {}
            ("other@/", "language", "Dutch", 1.0, 3, 3) ("support@/", "city", "Köln", 1.0, 1, 1) ("support@/", "language", "French", 1.0, 1, 2)
            seq 4 {}
            seq 0 again {}
            seq 5 {}
            ("other@/", "language")
            the same up to 5
        "#]],
    );
}

#[test]
fn wrong_facts_are_refused_as_a_whole() {
    check(
        r#"
        save_memories namespace=support facts=[{"key":"a","value":"x"},{"key":"b","value":"  "}]
        save_memories namespace=support facts=[{"key":"a","value":"x"},{"key":"a","value":"y"}]
        save_memories namespace=support facts=[{"key":"","value":"x"}]
        save_memories namespace=support facts=[{"key":"a\nb","value":"x"}]
        save_memories namespace=support facts=[{"key":"a","value":"x","confidence":1.5}]
        save_memories namespace=support facts=[{"key":"a","value":"x","source_seq":99}]
        save_memories namespace=su@pport facts=[{"key":"a","value":"x"}]
        save_memories namespace=support facts=[{"key":"a","value":"x","tenant":"zeta"}]
        save_memories namespace=support facts=[{"key":"a","value":"x"}] scope={"tenant":7}
        save_memories namespace=support facts=[{"key":"a","value":"x"}] session_id=s1
        save_memories namespace=support facts=[{"key":"a","value":"x"}] run_id=r1
        save_memories namespace=support facts=[]
        sql SELECT count(*) FROM memories
        "#,
        expect![[r#"
            refused bad_arguments: the value of b is empty (hint: forget_memories deletes a fact)
            refused bad_arguments: facts contains the key a twice
            refused bad_arguments: the key of a fact is empty
            refused bad_arguments: the key of a fact contains the character U+000A (hint: control, invisible and bidirectional characters are not allowed, and no blank but the space)
            refused bad_arguments: confidence must be between 0 and 1
            refused bad_arguments: source_seq must be between 1 and 1, not 99
            refused bad_arguments: namespace "su@pport" is not valid (hint: letters, digits, . _ - and / are allowed, as in the name of an agent)
            refused bad_arguments: save_memories: unexpected argument facts[0].tenant (hint: facts[0] has key, value, confidence, source_seq)
            refused bad_arguments: scope.tenant must be a string (hint: for example {"tenant": "acme"})
            refused not_found: there is no session s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused bad_arguments: run_id and fencing_token must be given together (hint: the driver of a run gives both; other callers omit both)
            seq 0 again {}
            (0)
        "#]],
    );
}

/// A vector belongs to one version of a fact.
#[test]
fn a_vector_is_dropped_when_the_fact_changes() {
    check(
        r#"
        save_memories namespace=support facts=[{"key":"a","value":"x"},{"key":"b","value":"y"}]
        embed_memories model=m vectors=[{"memory_id":1,"seq":1,"vector":{"$blob":"AACAPw=="}},{"memory_id":2,"seq":1,"vector":{"$blob":"AACAPw=="}}]
        embed_memories model=m vectors=[{"memory_id":1,"seq":7,"vector":{"$blob":"AACAPw=="}},{"memory_id":9,"seq":1,"vector":{"$blob":"AACAPw=="}}]
        embed_memories model=m vectors=[{"memory_id":1,"seq":1,"vector":{"$blob":"AAA="}}]
        embed_memories model=m vectors=[{"memory_id":1,"seq":1,"vector":"AACAPw=="}]
        embed_memories model=m vectors=[{"memory_id":1,"seq":1,"vector":{"$blob":"AADAfw=="}}]
        sql SELECT memory_id, model, hex(vector) FROM memory_vectors
        save_memories namespace=support facts=[{"key":"a","value":"z"}]
        sql SELECT memory_id FROM memory_vectors
        forget_memories space=support@/
        sql SELECT count(*) FROM memory_vectors
        replay
        "#,
        expect![[r#"
            seq 1 {}
            seq 2 {}
            seq 0 again {}
            refused bad_arguments: the vector of fact 1 must have 4 to 16384 bytes, in fours, not 2 (hint: a vector is 32-bit floats, little-endian, as {"$blob": "<base64>"})
            refused bad_arguments: the vector of fact 1 is not valid (hint: a vector is 32-bit floats, little-endian, as {"$blob": "<base64>"})
            refused bad_arguments: the vector of fact 1 contains a number that is not finite (hint: a vector is 32-bit floats, little-endian, as {"$blob": "<base64>"})
            (1, "m", "0000803F") (2, "m", "0000803F")
            seq 3 {}
            (2)
            seq 4 {}
            (0)
            the same up to 4
        "#]],
    );
}

/// A session without a scope can be called like the space of a tenant: its facts are in another space.
#[test]
fn a_tenant_neither_reads_nor_changes_the_facts_of_another() {
    check(
        r#"
        who ann app +* tenant=acme
        who zoe app +* tenant=zeta
        who eve app +* tenant=acme user=eve
        create_session agent=support id=tenant=acme/
        create_session agent=support id=s1 as=zoe
        save_memories namespace=support facts=[{"key":"code","value":"swordfish"}] as=ann
        save_memories namespace=support facts=[{"key":"code","value":"root"}] session_id=tenant=acme/
        save_memories namespace=support facts=[{"key":"code","value":"zeta"}] as=zoe
        save_memories namespace=support facts=[{"key":"code","value":"eve"}] as=eve
        save_memories namespace=support facts=[{"key":"code","value":"x"}] scope={"tenant":"acme"} as=zoe
        save_memories namespace=support facts=[{"key":"code","value":"x"}] session_id=tenant=acme/ as=ann
        save_memories namespace=support facts=[{"key":"code","value":"x"}] session_id=tenant=zeta/s1 as=ann
        forget_memories space=support@tenant=acme/ as=zoe
        forget_memories space=support@tenant=acme/ keys=["code"] as=eve
        forget_memories space=support@tenant=none/ as=zoe
        embed_memories model=m vectors=[{"memory_id":1,"seq":4,"vector":{"$blob":"AACAPw=="}}] as=zoe
        embed_memories model=m vectors=[{"memory_id":77,"seq":4,"vector":{"$blob":"AACAPw=="}}] as=zoe
        sql SELECT space, value, scope FROM memories ORDER BY id
        sql SELECT count(*) FROM memory_vectors
        replay
        "#,
        expect![[r#"
            seq 1 {id: tenant=acme/, status: created}
            seq 2 {id: tenant=zeta/s1, status: created, scope: {"tenant":"zeta"}}
            seq 3 {}
            seq 4 {}
            seq 5 {}
            seq 6 {}
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            refused not_found: there is no session tenant=acme/ (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            refused not_found: there is no session tenant=zeta/s1 (hint: the query `SELECT id, agent, status FROM sessions` lists them)
            seq 0 again {}
            seq 0 again {}
            seq 0 again {}
            seq 0 again {}
            seq 0 again {}
            ("support@tenant=acme/", "swordfish", "{\"tenant\":\"acme\"}") ("support@/tenant=acme/", "root", "{}") ("support@tenant=zeta/", "zeta", "{\"tenant\":\"zeta\"}") ("support@tenant=acme,user=eve/", "eve", "{\"tenant\":\"acme\",\"user\":\"eve\"}")
            (0)
            the same up to 7
        "#]],
    );
}

/// The facts of a run are learned in its session, and a driver that has lost the run saves nothing.
#[test]
fn the_holder_of_a_run_saves_its_facts() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        start_run session_id=s1 id=r1
        claim_run id=r1 driver=d lease_ms=1000
        save_memories namespace=lead session_id=s1 facts=[{"key":"a","value":"x"}] run_id=r1 fencing_token=4
        save_memories namespace=lead scope={"tenant":"a"} facts=[{"key":"a","value":"x"}] run_id=r1 fencing_token=4
        save_memories namespace=lead facts=[{"key":"b","value":"x"}] run_id=r1 fencing_token=3
        forget_memories space=lead@tenant=a/ run_id=r1 fencing_token=3
        sql SELECT space, session_id, scope, key FROM memories ORDER BY id
        sql SELECT seq, session_id FROM events WHERE reducer = 'save_memories'
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1, revision: 1, status: running, driver: d, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 4, lease_expires_at: 14:00:01}
            seq 5 {}
            seq 6 {}
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            refused lease_lost: run r1 is driven by d under another token (hint: another driver may have claimed the run; stop, and claim it again to continue)
            ("lead@tenant=a/s1", "s1", "{\"tenant\":\"a\"}", "a") ("lead@tenant=a/", null, "{\"tenant\":\"a\"}", "a")
            (5, "s1") (6, "s1")
            the same up to 6
        "#]],
    );
}

#[test]
fn a_space_is_full_after_a_thousand_facts() {
    use abide_tests::world::{World, run};
    use serde_json::json;
    run(async {
        let world = World::new(abide_reducers::modules);
        let facts = |from: usize, count: usize| {
            let facts = (from..from + count).map(|n| json!({"key": format!("k{n}"), "value": "v"}));
            json!({"namespace": "support", "facts": facts.collect::<Vec<_>>()})
        };
        for from in (0..1_000).step_by(100) {
            world.call("save_memories", facts(from, 100)).await.unwrap();
        }
        let refused = world.call("save_memories", facts(1_000, 1)).await.unwrap_err();
        expect![[r#"limit_exceeded: space support@/ has 1000 facts; the limit is 1000"#]]
            .assert_eq(&format!("{}: {}", refused.code, refused.detail));
        let refused = world.call("save_memories", facts(0, 101)).await.unwrap_err();
        expect![[r#"limit_exceeded: facts has 101 items; the limit is 100"#]]
            .assert_eq(&format!("{}: {}", refused.code, refused.detail));
        // A fact that exists can be replaced.
        let changed = json!({"namespace": "support", "facts": [{"key": "k7", "value": "new"}]});
        world.call("save_memories", changed).await.unwrap();
        let forget = world.call("forget_memories", json!({"space": "support@/"})).await.unwrap();
        assert_eq!(forget.result, r#"{"forgotten":100,"more":true}"#);
    });
}
