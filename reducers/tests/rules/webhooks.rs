//! Webhooks: what is sent, when it is tried again, and what their rows and events do not show.

use expect_test::expect;

use crate::check;

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# put_webhook
start_run {"session_id":"big","id":"mine"}
put_webhook {"run_id":"mine","name":"new","url":"https://x/","token":"x"}
# delete_webhook
start_run {"session_id":"big","id":"mine"}
put_webhook {"run_id":"mine","name":"new","url":"https://x/"}
delete_webhook {"id":"$id"}
# record_delivery
start_run {"session_id":"big","id":"mine"}
put_webhook {"run_id":"mine","name":"new","url":"https://x/","after":0}
record_delivery {"id":"$id","set_seq":"$seq","delivered":1}
# retry_webhook
start_run {"session_id":"big","id":"mine"}
put_webhook {"run_id":"mine","name":"new","url":"https://x/","after":0}
record_delivery {"id":"$id","set_seq":"$seq","delivered":0,"error":"x","retry_in_ms":5}
+10
"#;

#[test]
fn a_webhook_follows_its_run_to_the_end() {
    check(
        r#"
        register_agent name=lead definition={}
        create_session agent=lead id=s1 scope={"tenant":"a"}
        start_run session_id=s1 id=r1
        put_webhook run_id=r1 name=w url=https://x.example/ token=secret scheme=Bearer credentials=abc after=0
        put_webhook run_id=r1 name=w url=https://x.example/ token=secret scheme=Bearer credentials=abc after=0
        put_webhook run_id=r1 name=late url=https://x.example/
        record_delivery id=r1~w set_seq=3 delivered=1
        record_delivery id=r1~w set_seq=4 delivered=2
        record_delivery id=r1~w set_seq=4 delivered=1 retry_in_ms=5
        record_delivery id=r1~w set_seq=4 delivered=0 error="no answer" retry_in_ms=1000
        sql SELECT id, status, delivered, attempts, error, due_at IS NOT NULL FROM webhooks
        +1001ms
        sql SELECT status, attempts, due_at IS NOT NULL FROM webhooks WHERE id = 'r1~w'
        record_delivery id=r1~w set_seq=4 delivered=1
        abort_run id=r1
        record_delivery id=r1~w set_seq=4 delivered=3
        record_delivery id=r1~w set_seq=4 delivered=3
        record_delivery id=r1~late set_seq=5 delivered=1 error="gone"
        sql SELECT id, status, delivered, token, credentials, error FROM webhooks
        put_webhook run_id=r1 name=w url=https://x.example/ token=secret
        sql SELECT id, status, delivered, token FROM webhooks WHERE name = 'w'
        delete_webhook id=r1~w
        delete_webhook id=r1~w
        replay
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created, scope: {"tenant":"a"}}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: r1~w, name: w, status: active}
            seq 4 again {id: r1~w, name: w, status: active}
            seq 5 {id: r1~late, name: late, status: active}
            refused conflict: webhook r1~w was replaced (hint: read the webhook again before the next delivery)
            refused bad_arguments: delivered must be between 0 and 1, not 2
            refused bad_arguments: retry_in_ms is valid only with error (hint: a delivery is retried only if it failed)
            seq 6 {id: r1~w, name: w, status: active}
            ("r1~late", "active", 1, 0, null, 0) ("r1~w", "active", 0, 1, "no answer", 1)
            ("active", 1, 0)
            seq 8 {id: r1~w, name: w, status: active}
            seq 9 {id: r1, revision: 1, status: aborted, turn: 1, iterations: 0, tool_calls: 0, events: 3, reason: the run was aborted, error_code: aborted, error_message: the run was aborted}
            seq 10 {id: r1~w, name: w, status: done}
            refused conflict: webhook r1~w is done (hint: read the webhook again before the next delivery)
            seq 11 {id: r1~late, name: late, status: failed}
            ("r1~late", "failed", 1, null, null, "gone") ("r1~w", "done", 3, null, null, null)
            seq 12 {id: r1~w, name: w, status: done}
            ("r1~w", "done", 3, null)
            seq 13 {id: r1~w, name: w, status: done}
            refused not_found: there is no webhook r1~w (hint: the query `SELECT id, run_id, name, status FROM webhooks` lists them)
            the same up to 13
        "#]],
    );
}

#[test]
fn invalid_webhooks_are_refused() {
    let long = "x".repeat(3_000);
    check(
        &format!(
            r#"
        register_agent name=lead definition={{}}
        create_session agent=lead id=s1
        start_run session_id=s1 id=r1
        put_webhook run_id=r2 name=w url=https://x.example/
        put_webhook run_id=r1 name="" url=https://x.example/
        put_webhook run_id=r1 name=w url=x.example
        put_webhook run_id=r1 name=w url="https://x.example/ b"
        put_webhook run_id=r1 name=w url=https://x.example/{long}
        put_webhook run_id=r1 name=w url=https://x.example/ token=""
        put_webhook run_id=r1 name=w url=https://x.example/ token=é
        put_webhook run_id=r1 name=w url=https://x.example/ token={long}{long}
        put_webhook run_id=r1 name=w url=https://x.example/ credentials=abc
        put_webhook run_id=r1 name=w url=https://x.example/ scheme="Bear er" credentials=abc
        put_webhook run_id=r1 name=w url=https://x.example/ after=2
        put_webhook run_id=r1 name=w url=https://x.example/ after=-1
        "#
        ),
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: s1, status: created}
            seq 3 {id: r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            refused not_found: there is no run r2 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused bad_arguments: name is empty
            refused bad_arguments: url must begin with http:// or https://
            refused bad_arguments: url must begin with http:// or https://
            refused limit_exceeded: url has 3018 bytes; the limit is 2048
            refused bad_arguments: token is empty or contains characters that a header cannot have (hint: printable ASCII is allowed)
            refused bad_arguments: token is empty or contains characters that a header cannot have (hint: printable ASCII is allowed)
            refused limit_exceeded: token has 6000 bytes; the limit is 4096
            refused bad_arguments: scheme is required with credentials (hint: give scheme, such as Bearer)
            refused bad_arguments: scheme must be the name of an authentication scheme (hint: such as Bearer or Basic)
            refused bad_arguments: after must be between 0 and 1, not 2
            refused bad_arguments: after must be between 0 and 1, not -1
        "#]],
    );
}

/// The scope applies to webhooks as to runs; the caller that set one is recorded.
#[test]
fn tenants_do_not_reach_webhooks_of_others() {
    check(
        r#"
        register_agent name=lead definition={}
        who ann app tenant=acme
        who bob app tenant=zeta
        create_session as=ann agent=lead id=s1
        start_run as=ann session_id=s1 id=r1
        put_webhook as=ann run_id=r1 name=w url=https://x.example/ token=secret
        put_webhook as=bob run_id=r1 name=w url=https://z.example/
        put_webhook as=bob run_id=tenant=acme/r1 name=w url=https://z.example/
        delete_webhook as=bob id=r1~w
        delete_webhook as=bob id=tenant=acme/r1~w
        record_delivery as=bob id=tenant=acme/r1~w set_seq=4 delivered=1
        sql SELECT id, set_by, authority FROM webhooks
        delete_webhook as=ann id=r1~w
        "#,
        expect![[r#"
            seq 1 {name: lead, revision: 1, mode: primary}
            seq 2 {id: tenant=acme/s1, status: created, scope: {"tenant":"acme"}}
            seq 3 {id: tenant=acme/r1, revision: 1, status: running, turn: 1, iterations: 0, tool_calls: 0, events: 1}
            seq 4 {id: tenant=acme/r1~w, name: w, status: active}
            refused not_found: there is no run r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused not_found: there is no run tenant=acme/r1 (hint: the query `SELECT id, session_id, status FROM runs` lists them)
            refused not_found: there is no webhook r1~w (hint: the query `SELECT id, run_id, name, status FROM webhooks` lists them)
            refused not_found: there is no webhook tenant=acme/r1~w (hint: the query `SELECT id, run_id, name, status FROM webhooks` lists them)
            refused not_found: there is no webhook tenant=acme/r1~w (hint: the query `SELECT id, run_id, name, status FROM webhooks` lists them)
            ("tenant=acme/r1~w", "ann", "{\"capabilities\":[],\"role\":\"app\",\"scope\":{\"tenant\":\"acme\"}}")
            seq 5 {id: tenant=acme/r1~w, name: w, status: active}
        "#]],
    );
}
