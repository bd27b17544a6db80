//! The README's promise: a watched row appears when another process inserts it, and disappears when
//! another process claims it, even if the server is killed in between.

use serde_json::{Value as JsonValue, json};

use crate::program::{Process, abide};
use crate::server::Server;

const PENDING: &str = "SELECT * FROM handoff_requests WHERE status='pending'";

fn call(server: &Server, reducer: &str, pairs: &[&str]) -> JsonValue {
    let args: Vec<&str> = ["call", "--json", reducer].iter().chain(pairs).copied().collect();
    server.run(&args).json()["result"].take()
}

fn request(server: &Server, reason: &str) -> String {
    let reason = format!("reason={reason}");
    let pairs = ["session_id=s1", &reason, "required_capability=refunds"];
    let row = call(server, "request_supervisor_handoff", &pairs);
    row["id"].as_str().unwrap().to_owned()
}

fn watch(server: &Server, more: &[&str]) -> Process {
    Process::spawn(abide().args(["watch", PENDING, "--url", &server.url()]).args(more))
}

#[test]
fn a_watched_row_is_inserted_and_claimed_by_other_processes() {
    let server = Server::start();
    call(&server, "create_session", &["agent=support", "id=s1"]);
    let watch = watch(&server, &[]);
    for round in 1..=3 {
        let reason = format!("angry {round} times");
        let id = request(&server, &reason);
        let came = watch.line();
        assert!(came.starts_with(&format!("+ {id}\ts1\t{reason}\trefunds\t")), "{came}");
        let claimed = call(&server, "claim_handoff", &[&format!("id={id}")]);
        assert_eq!(claimed["status"], "claimed");
        let left = watch.line();
        assert_eq!(left, came.replacen('+', "-", 1));
        let resolution = [&format!("id={id}"), "resolution=a refund"];
        assert_eq!(call(&server, "resolve_handoff", &resolution)["status"], "resolved");
    }
    watch.terminate();
    let ended = watch.ended();
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (Some(0), "", ""), "nothing else");
}

#[test]
fn watching_survives_the_servers_death() {
    let mut server = Server::start();
    call(&server, "create_session", &["agent=support", "id=s1"]);
    let watch = watch(&server, &[]);
    let first = request(&server, "before");
    assert!(watch.line().starts_with(&format!("+ {first}\t")));

    server.kill();
    let down = server.run(&["call", "claim_handoff", &format!("id={first}")]);
    assert_eq!(down.code, Some(3), "{down:?}");
    server.start_again();
    call(&server, "claim_handoff", &[&format!("id={first}")]);
    assert!(watch.line().starts_with(&format!("- {first}\t")), "an insert is not repeated");
    call(&server, "resolve_handoff", &[&format!("id={first}"), "resolution=done"]);

    server.kill();
    server.start_again();
    let second = request(&server, "after");
    assert!(watch.line().starts_with(&format!("+ {second}\ts1\tafter\t")));
    server.kill();
    watch.terminate();
    let ended = watch.ended();
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""), "it ends while waiting: {ended:?}");
}

#[test]
fn programs_receive_frames() {
    let server = Server::start();
    call(&server, "create_session", &["agent=support", "id=s1"]);
    let watch = watch(&server, &["--json", "--count", "3"]);
    let frame = || -> JsonValue { serde_json::from_str(&watch.line()).unwrap() };
    let snapshot = frame();
    assert_eq!(snapshot["op"], "snapshot");
    assert_eq!((&snapshot["seq"], &snapshot["rows"]), (&json!(1), &json!([])));
    assert_eq!(snapshot["key"], json!(["id"]));

    let id = request(&server, "angry");
    let came = frame();
    assert_eq!((&came["op"], &came["from"], &came["to"]), (&json!("delta"), &json!(1), &json!(2)));
    assert_eq!(came["changes"][0]["inserts"][0][0], id);
    call(&server, "claim_handoff", &[&format!("id={id}")]);
    let left = frame();
    assert_eq!((&left["from"], &left["to"]), (&json!(2), &json!(3)));
    assert_eq!(left["changes"][0]["deletes"], json!([[id]]));
    assert_eq!(watch.ended().code, Some(0), "it ends after three updates");
}
