//! A server that comes back with another history. Subscriptions resumed by seq alone, so a client that was connected
//! while an older backup was restored, or while another file was served on the same port, kept the rows of the former
//! history and applied the changes of the other to them.

use std::fs;

use abide_client::{Abide, Subscription};
use serde_json::json;
use tokio::time::timeout;

use crate::program::{PATIENCE, Process, abide as program, run};
use crate::server::Server;

const QUERY: &str = "SELECT seq, content FROM agent_state ORDER BY seq";

/// Waits until the subscription has a message with this content.
async fn wait_for(subscription: &mut Subscription, content: &str) {
    let has = |subscription: &Subscription| {
        subscription.rows().any(|row| format!("{row:?}").contains(content))
    };
    while !has(subscription) {
        let update = timeout(PATIENCE, subscription.try_next()).await.expect("an update");
        update.expect("the subscription does not end");
    }
}

async fn append_messages(abide: &Abide, contents: &[&str]) {
    for content in contents {
        let message = json!({"session_id": "s1", "role": "user", "content": content});
        abide.call_by_name("append_message", message).await.unwrap();
    }
}

fn backup(server: &Server, name: &str) {
    let db = server.db();
    let copy = server.sibling(name);
    run(["backup", copy.to_str().unwrap(), "--db", db.to_str().unwrap()]).good();
}

/// Puts another file in place of the file, as `docs/backup.md` describes.
fn restore(server: &Server, name: &str) {
    for ending in ["", "-wal", "-shm"] {
        let path = format!("{}{ending}", server.db().display());
        // A clean stop leaves no WAL.
        let _ = fs::remove_file(path);
    }
    fs::copy(server.sibling(name), server.db()).unwrap();
}

/// The rows of the subscription equal the result of the query.
async fn assert_equal(abide: &Abide, subscription: &Subscription) {
    let expected: Vec<(i64, String)> = abide.sql(QUERY).fetch().await.unwrap();
    let rows: Vec<(i64, String)> = subscription.typed_rows().unwrap();
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn a_client_notices_that_a_backup_was_restored() {
    for is_killed in [true, false] {
        let mut server = Server::start();
        let abide = server.client().await;
        abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
        append_messages(&abide, &["one", "two"]).await;
        backup(&server, "copy.db");

        append_messages(&abide, &["lost 1", "lost 2", "lost 3"]).await;
        let mut watched = abide.subscribe(QUERY).await.unwrap();
        wait_for(&mut watched, "lost 3").await;
        if is_killed {
            server.kill()
        } else {
            server.stop()
        }

        restore(&server, "copy.db");
        server.start_again();
        // The restored file reaches the seqs that the client knows with other events.
        append_messages(&server.client().await, &["other 1", "other 2", "other 3", "other 4"])
            .await;
        wait_for(&mut watched, "other 4").await;
        assert_equal(&abide, &watched).await;
    }
}

#[tokio::test]
async fn a_client_notices_another_file_on_the_same_port() {
    let mut server = Server::start();
    let abide = server.client().await;
    for id in ["s1", "s2"] {
        let session = json!({"agent": "a", "id": id});
        abide.call_by_name("create_session", session).await.unwrap();
    }
    append_messages(&abide, &["here"]).await;
    let mut watched = abide.subscribe(QUERY).await.unwrap();
    wait_for(&mut watched, "here").await;
    server.stop();

    let mut elsewhere = Server::start_on(&server.sibling("other.db"));
    let other = elsewhere.client().await;
    other.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    append_messages(&other, &["there 1", "there 2", "there 3"]).await;
    elsewhere.stop();
    restore(&server, "other.db");
    server.start_again();
    wait_for(&mut watched, "there 3").await;
    assert_equal(&abide, &watched).await;
}

/// A file with three messages, its backup with one, and then the backup with other messages in place of the file.
/// `commands` run against the server all that time.
async fn restored_under<const N: usize>(commands: [&[&str]; N]) -> [Process; N] {
    let mut server = Server::start();
    let abide = server.client().await;
    abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    append_messages(&abide, &["one"]).await;
    backup(&server, "copy.db");
    append_messages(&abide, &["lost 1", "lost 2"]).await;
    let mut running = commands.map(|command| {
        let mut process = program();
        process.args(command).args(["--url", &server.url()]);
        Process::spawn(&mut process)
    });
    for process in &mut running {
        while !process.line().contains("lost 2") {}
    }
    server.stop();
    restore(&server, "copy.db");
    server.start_again();
    append_messages(&server.client().await, &["other 1", "other 2", "other 3"]).await;
    for process in &mut running {
        while !process.error_line().contains("the history changed at ") {}
    }
    running
}

/// `abide events --follow` compared seqs over a restore: it left out the events of the other history whose seqs it had
/// shown, without a word.
#[tokio::test]
async fn events_of_the_other_history_are_shown() {
    let follow: &[&str] = &["events", "--follow", "--last", "1"];
    let [events] = restored_under([follow]).await;
    for content in ["create_session", "one", "other 1", "other 2", "other 3"] {
        let line = events.line();
        assert!(line.contains(content), "{content} is not in {line}");
    }
}

#[tokio::test]
async fn watch_reports_the_other_history() {
    let lines: &[&str] = &["watch", QUERY];
    let json: &[&str] = &["watch", "--json", QUERY];
    let [lines, json] = restored_under([lines, json]).await;
    while !lines.line().contains("other 3") {}
    // Programs get the whole result in place of what they have.
    let record = json.line();
    assert!(record.starts_with(r#"{"op":"snapshot""#), "{record}");
    assert!(record.contains(r#""reset":true,"history_changed":true"#), "{record}");
    assert!(record.contains("one") && !record.contains("lost"), "{record}");
}

/// After an ordinary restart, and after a crash, a client resumes with the changes and does not fetch the result again.
#[tokio::test]
async fn a_client_resumes_after_a_restart() {
    let mut server = Server::start();
    let abide = server.client().await;
    abide.call_by_name("create_session", json!({"agent": "a", "id": "s1"})).await.unwrap();
    append_messages(&abide, &["first"]).await;
    // Without rows of its own, the subscription reports a whole result as `reset`.
    let mut watched = abide.subscribe(QUERY).after(1).await.unwrap();
    let update = timeout(PATIENCE, watched.try_next()).await.expect("an update").unwrap().unwrap();
    assert!(!update.reset && format!("{update:?}").contains("first"), "{update:?}");
    for (nth, is_killed) in [true, false, false, true].into_iter().enumerate() {
        if is_killed {
            server.kill()
        } else {
            server.stop()
        }
        server.start_again();
        let content = format!("after {nth}");
        append_messages(&server.client().await, &[&content]).await;
        let update =
            timeout(PATIENCE, watched.try_next()).await.expect("an update").unwrap().unwrap();
        assert!(!update.reset && format!("{update:?}").contains(&content), "{update:?}");
    }
}
