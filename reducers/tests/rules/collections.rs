//! Collections: entries that an application writes, all or nothing.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# write_entries
write_entries {"collection_id":"box","puts":[{"key":"new","data":1},{"key":"k","data":2}],"deletes":["k1"]}
# delete_entries
delete_entries {"collection_id":"box","prefix":"k"}
"#;

#[test]
fn entries_are_written_and_deleted() {
    check(
        r#"
        write_entries collection_id=t1 kind=thread puts=[{"key":"b","data":{"z":1,"a":2}},{"key":"a","blob":{"$blob":"AP8="}}]
        sql SELECT key, data, hex(blob), seq FROM entries ORDER BY key
        sql SELECT id, kind, scope, fencing_token, seq FROM collections
        write_entries collection_id=t1 puts=[{"key":"b","data":null},{"key":"a","data":1,"keep":true}]
        sql SELECT key, data, hex(blob), seq FROM entries ORDER BY key
        write_entries collection_id=t1 deletes=["a","none"]
        sql SELECT key FROM entries
        write_entries collection_id=t1
        write_entries collection_id=none
        sql SELECT count(*) FROM events
        delete_entries collection_id=t1 prefix=c
        delete_entries collection_id=t1 prefix=null
        sql SELECT (SELECT count(*) FROM entries), count(*) FROM collections
        delete_entries collection_id=t1 prefix=null
        "#,
        expect![[r#"
            seq 1 {}
            ("a", null, "00FF", 1) ("b", "{\"a\":2,\"z\":1}", "", 1)
            ("t1", "thread", "{}", null, 1)
            seq 2 {}
            ("a", null, "00FF", 1) ("b", null, "", 2)
            seq 3 {}
            ("b")
            seq 0 again {}
            seq 0 again {}
            (3)
            seq 4 {}
            seq 5 {}
            (0, 0)
            seq 0 again {}
        "#]],
    );
}

/// Clients made the keys of a list from their clocks. Items of a process whose clock was behind came before those that they
/// answered, for good.
#[test]
fn appended_entries_are_in_the_order_of_the_log() {
    check(
        r#"
        write_entries collection_id=t1 puts=[{"key":"","data":1,"append":true},{"key":"","data":2,"append":true},{"key":"z","data":0}]
        write_entries collection_id=t1 puts=[{"key":"e/","data":"event","append":true}] request_id=again
        write_entries collection_id=t1 puts=[{"key":"e/","data":"event","append":true}] request_id=again
        write_entries collection_id=t1 puts=[{"key":"","data":3,"append":true}]
        sql SELECT key, data, seq FROM entries ORDER BY key
        write_entries collection_id=t1 puts=[{"key":"","append":true,"expected_seq":0}]
        write_entries collection_id=t1 puts=[{"key":"","append":true,"keep":true}]
        "#,
        expect![[r#"
            seq 1 {}
            seq 2 {}
            seq 2 again {}
            seq 3 {}
            ("0000000000000001001", "1", 1) ("0000000000000001002", "2", 1) ("0000000000000003001", "3", 3) ("e/0000000000000002001", "\"event\"", 2) ("z", "0", 1)
            refused bad_arguments: expected_seq and keep are not valid with append=true (hint: an appended entry has a new key: omit expected_seq and keep, or append)
            refused bad_arguments: expected_seq and keep are not valid with append=true (hint: an appended entry has a new key: omit expected_seq and keep, or append)
        "#]],
    );
}

#[test]
fn a_write_can_be_a_compare_and_set() {
    check(
        r#"
        write_entries collection_id=t1 puts=[{"key":"a","data":1,"expected_seq":0}]
        write_entries collection_id=t1 puts=[{"key":"a","data":2,"expected_seq":0}]
        write_entries collection_id=t1 puts=[{"key":"b","data":2},{"key":"b2","data":2,"expected_seq":7}]
        write_entries collection_id=t1 puts=[{"key":"a","data":2,"expected_seq":1}]
        sql SELECT key, data, seq FROM entries
        "#,
        expect![[r#"
            seq 1 {}
            refused conflict: entry a was written by event 1; expected_seq is 0 (hint: read it again and retry the change)
            refused conflict: entry b2 does not exist; expected_seq is 7 (hint: omit expected_seq, or give 0, to create it)
            seq 2 {}
            ("a", "2", 2)
        "#]],
    );
}

#[test]
fn bounds_are_checked() {
    check(
        r#"
        write_entries collection_id="" puts=[{"key":"a"}]
        write_entries collection_id=t1 puts=[{"key":""}]
        write_entries collection_id=t1 puts=[{"key":"a","blob":"text"}]
        write_entries collection_id=t1 puts=[{"key":"a","value":1}]
        write_entries collection_id=t1 kind="" puts=[{"key":"a"}]
        sql SELECT count(*) FROM collections
        "#,
        expect![[r#"
            refused bad_arguments: collection_id is empty
            refused limit_exceeded: key must have 1 to 1024 bytes, not 0 (hint: use a digest as the end of a long key)
            refused bad_arguments: the blob of entry a is not valid (hint: write it as {"$blob": "<base64>"})
            refused bad_arguments: write_entries: unexpected argument puts[0].value (hint: puts[0] has key, data, blob, expected_seq, keep, append)
            refused bad_arguments: kind is empty
            (0)
        "#]],
    );
}

/// Regression: a thousand writes of one entry of 7 MiB that keep it read 7 GiB, and blocked all callers.
#[test]
fn a_call_reads_a_bounded_number_of_bytes() {
    let large = "x".repeat(7 << 20);
    let write = |key: u32| {
        format!("write_entries collection_id=c puts=[{{\"key\":\"{key}\",\"data\":\"{large}\"}}]\n")
    };
    let writes: String = (0..3).map(write).collect();
    check(
        &format!(
            r#"{writes}
            write_entries collection_id=c puts=[{{"key":"0","keep":true}},{{"key":"0","keep":true}}]
            write_entries collection_id=c puts=[{{"key":"0","keep":true}},{{"key":"1","keep":true}},{{"key":"2","keep":true}}]
            delete_entries collection_id=c prefix=null
            sql SELECT (SELECT count(*) FROM entries), count(*) FROM collections
            "#
        ),
        expect![[r#"
            seq 1 {}
            seq 2 {}
            seq 3 {}
            seq 4 {}
            refused limit_exceeded: the call replaces or reads entries of more than 16 MiB (hint: write them in several calls)
            seq 5 {}
            (0, 0)
        "#]],
    );
}

#[test]
fn a_late_writer_is_fenced_off() {
    check(
        r#"
        register_tool name=work effect=idempotent
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=work arguments={} claim_lease_ms=1000 as=ann
        write_entries collection_id=t1 puts=[{"key":"a","data":1}] call_id=c1 fencing_token=3 as=ann
        +1s
        claim_tool_call call_id=c1 as=bob
        sql SELECT fencing_token FROM tool_calls
        write_entries collection_id=t1 puts=[{"key":"a","data":2}] call_id=c1 fencing_token=6 as=bob
        write_entries collection_id=t1 puts=[{"key":"a","data":3}] call_id=c1 fencing_token=3 as=ann
        write_entries collection_id=t1 puts=[{"key":"a","data":3}] call_id=c1 fencing_token=6 as=ann
        write_entries collection_id=t1 puts=[{"key":"a","data":3}] as=ann
        delete_entries collection_id=t1 prefix=null as=ann
        sql SELECT data FROM entries
        delete_entries collection_id=t1 prefix=null call_id=c1 fencing_token=6 as=bob
        write_entries collection_id=t1 puts=[{"key":"a","data":3}] call_id=c1 fencing_token=3 as=ann
        sql SELECT (SELECT count(*) FROM entries), fencing_token FROM collections
        sql SELECT seq, session_id FROM events WHERE reducer LIKE '%_entries'
        replay
        "#,
        expect![[r#"
            seq 1 {name: work, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: ann, lease_expires_at: 14:00:01}
            seq 4 {}
            seq 6 {call_id: c1, status: claimed, attempt: 2, fencing_token: 6, claimed_by: bob, lease_expires_at: 14:00:31}
            (6)
            seq 7 {}
            refused lease_lost: call c1 is claimed by bob under another token (hint: another worker may repeat this call; discard this result)
            refused denied: the lease on call c1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            refused lease_lost: collection t1 is fenced: fencing_token is required (hint: claim the work again, and pass the fencing token of that claim)
            refused lease_lost: collection t1 is fenced: fencing_token is required (hint: claim the work again, and pass the fencing token of that claim)
            ("2")
            seq 9 {}
            refused lease_lost: call c1 is claimed by bob under another token (hint: another worker may repeat this call; discard this result)
            (0, 6)
            (4, "s1") (7, "s1") (9, "s1")
            the same up to 9
        "#]],
    );
}

/// Every event of the caller was a valid token: a worker that had lost its lease, or had finished, could make one with any
/// call, and lock out its successor.
#[test]
fn a_token_is_that_of_a_claim_that_is_held() {
    check(
        r#"
        register_tool name=work effect=idempotent
        create_session agent=support id=s1
        request_tool_call call_id=c1 session_id=s1 tool_name=work arguments={} claim_lease_ms=1000 as=ann
        append_message session_id=s1 role=user content=hello as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] fencing_token=4 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c1 fencing_token=4 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] fencing_token=3 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c1 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c1 run_id=r1 fencing_token=3 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c2 fencing_token=3 as=ann
        write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c1 fencing_token=3 as=bob
        delete_entries collection_id=t1 prefix=null call_id=c1 fencing_token=4 as=ann
        batch as=ann: write_entries collection_id=t1 puts=[{"key":"a"}] call_id=c1 fencing_token=3 | complete_tool_call call_id=c1 fencing_token=3 result=1
        write_entries collection_id=t1 puts=[{"key":"b"}] call_id=c1 fencing_token=3 as=ann
        request_supervisor_handoff session_id=s1 reason=help required_capability=x as=ann
        claim_handoff id=ho#1 as=sue
        write_entries collection_id=t1 puts=[{"key":"c"}] handoff_id=ho#1 fencing_token=9 as=sue
        write_entries collection_id=t1 puts=[{"key":"d"}] handoff_id=ho#1 fencing_token=9 as=ann
        release_handoff id=ho#1 as=sue
        write_entries collection_id=t1 puts=[{"key":"e"}] handoff_id=ho#1 fencing_token=9 as=sue
        register_agent name=support definition={"prompt":"be kind"}
        create_session agent=support id=s2
        start_run session_id=s2 id=r1 input=hello as=ann
        claim_run id=r1 driver=d1 lease_ms=1000 as=ann
        write_entries collection_id=t1 puts=[{"key":"f"}] run_id=r1 fencing_token=15 as=ann
        write_entries collection_id=t1 puts=[{"key":"g"}] run_id=r1 fencing_token=15 as=bob
        sql SELECT key FROM entries
        replay
        "#,
        expect![[r#"
            seq 1 {name: work, version: 1, effect: idempotent}
            seq 2 {id: s1, status: created}
            seq 3 {call_id: c1, status: claimed, attempt: 1, fencing_token: 3, claimed_by: ann, lease_expires_at: 14:00:01}
            seq 4 {id: 1}
            refused bad_arguments: fencing_token must be given with exactly one of call_id, run_id and handoff_id (hint: name the claim that the token is from, or omit all of them)
            refused lease_lost: call c1 is claimed by ann under another token (hint: another worker may repeat this call; discard this result)
            refused bad_arguments: fencing_token must be given with exactly one of call_id, run_id and handoff_id (hint: name the claim that the token is from, or omit all of them)
            refused bad_arguments: fencing_token must be given with exactly one of call_id, run_id and handoff_id (hint: name the claim that the token is from, or omit all of them)
            refused bad_arguments: fencing_token must be given with exactly one of call_id, run_id and handoff_id (hint: name the claim that the token is from, or omit all of them)
            refused not_found: there is no tool call c2 (hint: the query `SELECT call_id, session_id, status FROM tool_calls` lists them)
            refused denied: the lease on call c1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            refused lease_lost: call c1 is claimed by ann under another token (hint: another worker may repeat this call; discard this result)
            batch 7: seq 6 {} | seq 7 {call_id: c1, status: succeeded, attempt: 1, fencing_token: 3, claimed_by: ann, lease_expires_at: 14:00:01, result: 1}
            refused conflict: call c1 is succeeded already
            seq 8 {id: ho#1, status: pending, reason: help}
            seq 9 {id: ho#1, status: claimed, fencing_token: 9, claimed_by: sue, lease_expires_at: 14:15:00, reason: help}
            seq 10 {}
            refused conflict: handoff ho#1 was claimed by sue and its lease runs until 2026-11-21T14:15:00Z (hint: watch for handoffs: `abide watch "SELECT id, reason FROM handoff_requests WHERE status = 'pending'"`)
            seq 11 {id: ho#1, status: pending, fencing_token: 9, reason: help}
            refused lease_lost: the claim of handoff ho#1 has expired; the handoff is pending (hint: claim it again with `abide call claim_handoff id=ho#1`)
            seq 12 {name: support, revision: 1, mode: primary}
            seq 13 {id: s2, status: created}
            seq 14 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 15 {id: r1, revision: 1, status: running, driver: d1, turn: 1, iterations: 0, tool_calls: 0, events: 1, fencing_token: 15, lease_expires_at: 14:00:01}
            seq 16 {}
            refused denied: the lease on run r1 is held by another identity (hint: claim it with this identity first, when that lease has expired)
            ("a") ("c") ("f")
            the same up to 17
        "#]],
    );
}

/// A key can occur more than once in a call: the changes are made in order, deletions first.
#[test]
fn the_changes_of_a_call_see_each_other() {
    check(
        r#"
        write_entries collection_id=t1 puts=[{"key":"a","data":1}]
        write_entries collection_id=t1 deletes=["a","a"] puts=[{"key":"a","data":2,"expected_seq":0},{"key":"a","data":3,"expected_seq":2},{"key":"b","data":4},{"key":"b","data":5,"keep":true}]
        write_entries collection_id=t1 deletes=["a"] puts=[{"key":"a","data":6,"expected_seq":2}]
        sql SELECT key, data, seq FROM entries ORDER BY key
        "#,
        expect![[r#"
            seq 1 {}
            seq 2 {}
            refused conflict: entry a does not exist; expected_seq is 2 (hint: omit expected_seq, or give 0, to create it)
            ("a", "3", 2) ("b", "4", 2)
        "#]],
    );
}

/// The foreign key of the hidden entries is checked at the end of a group: a batch deleted the collection and created it
/// again as one whose entries are visible.
#[test]
fn a_collection_with_hidden_entries_is_kept() {
    check(
        r#"
        who ann agent
        set_policy table=entries role=agent condition="EXISTS (SELECT 1 FROM collections c WHERE c.id = collection_id AND c.kind = 'public')"
        write_entries collection_id=pay kind=secret puts=[{"key":"a","data":1}]
        delete_entries collection_id=pay prefix=null as=ann
        batch as=ann: delete_entries collection_id=pay prefix=null | write_entries collection_id=pay kind=public puts=[{"key":"x","data":1}]
        sql SELECT (SELECT count(*) FROM entries), kind FROM collections
        "#,
        expect![[r#"
            seq 1 {name: default}
            seq 2 {}
            seq 3 {}
            refused denied: call 2 of the batch: no policy permits the role agent this row of entries (hint: policies apply to writes as well as reads)
            (1, "secret")
        "#]],
    );
}

#[test]
fn a_collection_belongs_to_a_scope() {
    check(
        r#"
        who ann admin +* tenant=acme
        who zoe admin +* tenant=zeta
        write_entries collection_id=t1 as=ann
        write_entries collection_id=t1 puts=[{"key":"a","data":1}] as=ann
        write_entries collection_id=t1 puts=[{"key":"a","data":2}] as=zoe
        write_entries collection_id=tenant=acme/t1 puts=[{"key":"a","data":3}] as=zoe
        delete_entries collection_id=tenant=acme/t1 prefix=null as=zoe
        sql SELECT collection_id, data FROM entries
        sql SELECT id, scope FROM collections
        "#,
        expect![[r#"
            seq 0 again {}
            seq 1 {}
            seq 2 {}
            seq 3 {}
            seq 4 {}
            ("tenant=acme/t1", "1") ("tenant=zeta/t1", "2")
            ("tenant=acme/t1", "{\"tenant\":\"acme\"}") ("tenant=zeta/t1", "{\"tenant\":\"zeta\"}")
        "#]],
    );
}
