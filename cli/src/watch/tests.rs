//! What a pipe and a program are told of the same changes.

use abide_client::{Abide, Subscription};
use expect_test::{Expect, expect};
use serde_json::json;
use tempfile::TempDir;

use super::frames::Frames;
use super::lines::Lines;

/// Makes some changes while a query over sessions is watched.
async fn check(sql: &str, lines: Expect, frames: Expect) {
    let (_folder, abide) = opened();
    let mut live = abide.subscribe(sql).await.expect("it can be live");
    let (mut as_lines, mut as_frames) = (Lines::default(), Frames::default());
    let (mut said, mut framed) = (String::new(), String::new());
    let mut tell = |live: &Subscription, update: &abide_client::Update| {
        said.extend(as_lines.take(live, update).into_iter().map(|line| line + "\n"));
        let frame = as_frames.take(live, update);
        framed.push_str(&(serde_json::to_string(&frame).expect("it is JSON") + "\n"));
    };
    let first = live.next().await.expect("it goes on");
    tell(&live, &first);
    let calls = [
        ("create_session", json!({"agent": "a", "id": "s_1", "title": "two\nlines"})),
        ("suspend_session", json!({"session_id": "s_1", "reason": "waits"})),
        ("fail_session", json!({"session_id": "s_1", "code": "c", "message": "m"})),
    ];
    for (reducer, arguments) in calls {
        abide.call(reducer, arguments).await.expect("it is taken");
        let update = live.next().await.expect("it goes on");
        tell(&live, &update);
    }
    abide.close().await;
    lines.assert_eq(&said);
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
