//! A delta evaluates expressions for rows of the state before the commit, beyond a top-N result, and for rows that the query
//! as a whole never reaches, because a table that it joins is empty. An error there ended the subscription, although the
//! query itself has a result. Now the query is run again, and only its own error ends the subscription.

use abide_engine::{Connection, Start, SubscribeRequest, Update};
use abide_schema::Code;
use abide_schema::reducer::Caller;
use serde_json::{Map, Value as JsonValue, json};

use crate::engine::EngineFixture;

/// An array of JSON cannot hold a blob. SQLite evaluates it for each row of `r`, of which there is none.
const QUERY: &str = "SELECT 1 FROM r WHERE json_array(x'00ff', hex(1)) IN (SELECT n FROM s)";

async fn put(fixture: &EngineFixture, table: &str, row: JsonValue) {
    let args = json!({"table": table, "row": row, "how": "put"});
    let done = fixture.engine().call(&Caller::new("writer"), "put", &args, None).await;
    done.expect("the row is valid");
}

/// Returns the next update that is about the subscription.
async fn next(connection: &mut Connection) -> Update {
    loop {
        match connection.next().await {
            Update::Progress { .. } => {}
            update => return update,
        }
    }
}

#[tokio::test]
async fn a_delta_that_fails_is_not_an_error_of_the_query() {
    let fixture = EngineFixture::new();
    let mut connection = fixture.engine().connect(&Caller::local());
    let params = Map::new();
    let request =
        SubscribeRequest { start: Start::Now, ..SubscribeRequest::new("q", QUERY, &params) };
    connection.subscribe(&request).await.expect("the query can be live");
    assert!(matches!(next(&mut connection).await, Update::Snapshot(_)));

    put(&fixture, "s", json!(["k", 1, "c", 1])).await;
    let Update::Delta { changes, .. } = next(&mut connection).await else { panic!("no delta") };
    assert!(changes[0].delta.is_stale(), "the delta cannot be computed");
    let Update::Error { refusal, .. } = next(&mut connection).await else { panic!("no reason") };
    assert_eq!(refusal.code, Code::ResyncRequired, "the query was run again as a whole");
    let Update::Snapshot(part) = next(&mut connection).await else { panic!("no result") };
    assert!(part.rows.is_empty() && !part.more);

    put(&fixture, "r", json!([1, 1, 1, null, 1.0, null])).await;
    loop {
        match next(&mut connection).await {
            Update::Error { refusal, .. } => break assert_eq!(refusal.code, Code::BadSql),
            Update::Delta { changes, .. } => assert!(changes[0].delta.is_stale()),
            other => panic!("{other:?}"),
        }
    }
}
