//! The output for a pipe and for a program, of the same changes.

use abide_client::{Abide, Subscription};
use expect_test::{Expect, expect};
use serde_json::json;
use tempfile::TempDir;

use super::frames::Frames;
use super::lines::Lines;

/// Makes changes while a query over sessions is watched.
async fn check(sql: &str, lines: Expect, frames: Expect) {
    let (_folder, abide) = opened();
    let mut live = abide.subscribe(sql).await.expect("it can be live");
    let mut as_lines = Lines::default();
    let mut as_frames = Frames::default();
    let mut printed = String::new();
    let mut framed = String::new();
    let mut tell = |live: &Subscription, update: &abide_client::Update| {
        printed.extend(as_lines.next_lines(live, update).into_iter().map(|line| line + "\n"));
        let frame = as_frames.next_frame(live, update);
        framed.push_str(&(serde_json::to_string(&frame).expect("it is JSON") + "\n"));
    };
    let first = live.try_next().await.expect("it is live").expect("it goes on");
    tell(&live, &first);
    let calls = [
        ("create_session", json!({"agent": "a", "id": "s_1", "title": "two\nlines"})),
        ("suspend_session", json!({"session_id": "s_1", "reason": "waits"})),
        ("fail_session", json!({"session_id": "s_1", "code": "c", "message": "m"})),
    ];
    for (reducer, arguments) in calls {
        abide.call_by_name(reducer, arguments).await.expect("it is taken");
        let update = live.try_next().await.expect("it is live").expect("it goes on");
        tell(&live, &update);
    }
    abide.close().await;
    lines.assert_eq(&printed);
    frames.assert_eq(&framed);
}

fn opened() -> (TempDir, Abide) {
    let folder = tempfile::tempdir().expect("there is room");
    let abide = Abide::open(folder.path().join("watch.db")).expect("it opens");
    (folder, abide)
}

#[tokio::test]
async fn a_query_with_its_key() {
    check(
        "SELECT id, status, title FROM sessions WHERE status <> 'failed'",
        expect![[r#"
            + s_1	created	two\nlines
            ~ s_1	suspended	two\nlines
            - s_1	suspended	two\nlines
        "#]],
        expect![[r#"
            {"op":"snapshot","id":"watch","seq":0,"columns":[{"name":"id","type":"TEXT"},{"name":"status","type":"TEXT"},{"name":"title","type":"TEXT"}],"key":["id"],"rows":[]}
            {"op":"delta","from":0,"to":1,"changes":[{"id":"watch","deletes":[],"inserts":[["s_1","created","two\nlines"]],"updates":[]}]}
            {"op":"delta","from":1,"to":2,"changes":[{"id":"watch","deletes":[],"inserts":[],"updates":[["s_1","suspended","two\nlines"]]}]}
            {"op":"delta","from":2,"to":3,"changes":[{"id":"watch","deletes":[["s_1"]],"inserts":[],"updates":[]}]}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_query_without_its_key() {
    check(
        "SELECT status, reason FROM sessions WHERE status <> 'failed'",
        expect![[r#"
            + created	null
            - created	null
            + suspended	waits
            - suspended	waits
        "#]],
        expect![[r#"
            {"op":"snapshot","id":"watch","seq":0,"columns":[{"name":"status","type":"TEXT"},{"name":"reason","type":"TEXT"}],"key":[],"rows":[]}
            {"op":"delta","from":0,"to":1,"changes":[{"id":"watch","deletes":[],"inserts":[["created",null]],"updates":[]}]}
            {"op":"delta","from":1,"to":2,"changes":[{"id":"watch","deletes":[["created",null]],"inserts":[["suspended","waits"]],"updates":[]}]}
            {"op":"delta","from":2,"to":3,"changes":[{"id":"watch","deletes":[["suspended","waits"]],"inserts":[],"updates":[]}]}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn a_top_n_result_with_its_places() {
    let (_folder, abide) = opened();
    for id in ["s_1", "s_2", "s_3"] {
        let args = json!({"agent": "a", "id": id, "title": id.to_uppercase()});
        abide.call_by_name("create_session", args).await.expect("it is taken");
    }
    let sql = "SELECT title, status FROM sessions ORDER BY status DESC, id LIMIT 2";
    let mut live = abide.subscribe(sql).await.expect("it can be live");
    let mut lines = Lines::default();
    let mut frames = Frames::default();
    let mut output = String::new();
    let mut tell = |live: &Subscription, update: &abide_client::Update| {
        output.extend(lines.next_lines(live, update).into_iter().map(|line| line + "\n"));
        let frame = frames.next_frame(live, update);
        output.push_str(&(serde_json::to_string(&frame).expect("it is JSON") + "\n\n"));
    };
    let first = live.try_next().await.expect("it is live").expect("it goes on");
    tell(&live, &first);
    for id in ["s_3", "s_2"] {
        let args = json!({"session_id": id, "reason": "waits"});
        abide.call_by_name("suspend_session", args).await.expect("it is taken");
        let update = live.try_next().await.expect("it is live").expect("it goes on");
        tell(&live, &update);
    }
    abide.close().await;
    expect![[r#"
        + #1	S_1	created
        + #2	S_2	created
        {"op":"snapshot","id":"watch","seq":3,"columns":[{"name":"title","type":"TEXT"},{"name":"status","type":"TEXT"}],"key":[],"top_n":true,"rows":[["S_1","created"],["S_2","created"]]}

        - #2	S_2	created
        + #1	S_3	suspended
        {"op":"delta","from":3,"to":4,"changes":[{"id":"watch","deletes":[{"at":1}],"inserts":[{"at":0,"row":["S_3","suspended"]}],"updates":[]}]}

        - #2	S_1	created
        + #1	S_2	suspended
        {"op":"delta","from":4,"to":5,"changes":[{"id":"watch","deletes":[{"at":1}],"inserts":[{"at":0,"row":["S_2","suspended"]}],"updates":[]}]}

    "#]].assert_eq(&output);
}

/// A row that only moves, by a column that is not selected, prints no line on a pipe.
#[tokio::test]
async fn hidden_sort_columns_are_not_shown() {
    let (_folder, abide) = opened();
    for id in ["s_1", "s_2"] {
        abide
            .call_by_name("create_session", json!({"agent": "a", "id": id}))
            .await
            .expect("it is taken");
    }
    let sql = "SELECT id, agent FROM sessions ORDER BY updated_at DESC";
    let mut live = abide.subscribe(sql).await.expect("it can be live");
    let mut lines = Lines::default();
    let first = live.try_next().await.expect("it is live").expect("it goes on");
    assert_eq!(lines.next_lines(&live, &first), ["+ s_2\ta", "+ s_1\ta"]);
    let message = json!({"session_id": "s_1", "role": "user", "content": "hi"});
    abide.call_by_name("append_message", message).await.expect("it is taken");
    let update = live.try_next().await.expect("it is live").expect("the row moves");
    assert_eq!(update.update_rows().len(), 1);
    assert_eq!(lines.next_lines(&live, &update), [""; 0]);
    let ids: Vec<String> = live.rows().map(|row| row[0].to_json().to_string()).collect();
    assert_eq!(ids, ["\"s_1\"", "\"s_2\""]);
    abide.close().await;
}
