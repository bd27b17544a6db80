//! A panic in a thread of a real server's engine: the server reports it, responds, and can be
//! stopped and restarted.
//!
//! A panic outside a reducer once ended only the writer thread: `/ready` still returned 200, the
//! next call waited forever, and SIGTERM did not stop the process.

use std::process::Command;

use serde_json::Value as JsonValue;

use crate::program::{Process, abide, run};

/// The status and the body of an HTTP response.
fn get(address: &str, path: &str) -> (u16, JsonValue) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::program::PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn serve(db: &str, point: Option<&str>) -> (Process, String) {
    let mut command: Command = abide();
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--db", db]);
    if let Some(point) = point {
        command.env("ABIDE_TEST_PANIC", point);
    }
    let process = Process::spawn(&mut command);
    let greeting: JsonValue = serde_json::from_str(&process.line()).unwrap();
    (process, greeting["listening"].as_str().unwrap().to_owned())
}

#[test]
fn a_server_with_a_panicked_thread_reports_it_and_can_be_stopped() {
    for point in ["Ran", "Appended", "Synced"] {
        let folder = tempfile::tempdir().unwrap();
        let db = folder.path().join("abide.db");
        let db = db.to_str().unwrap();
        let (process, address) = serve(db, Some(point));
        let url = format!("http://{address}");
        assert_eq!(get(&address, "/ready").0, 200, "{point}");
        let call = |id: &str| {
            let id = format!("id={id}");
            run(["call", "create_session", "agent=support", &id, "--json", "--url", &url])
        };
        let first = call("s1");
        assert_eq!(first.code, Some(1), "{point}: {first:?}");
        let next = call("s2");
        assert_eq!(next.code, Some(1), "{point}: {next:?}");
        assert!(next.stderr.contains("\"code\":\"engine_failed\""), "{point}: {next:?}");
        let (status, problem) = get(&address, "/ready");
        assert_eq!((status, &problem["code"]), (503, &"engine_failed".into()), "{point}");
        // Kubernetes starts the server again: it asks this path.
        assert_eq!(get(&address, "/health").0, 503, "{point}");
        process.terminate();
        let ended = process.ended();
        assert_eq!(ended.code, Some(1), "{point}: a supervisor must see the failure: {ended:?}");
        assert!(ended.stderr.contains("panic on purpose"), "{point}: {ended:?}");

        let (process, address) = serve(db, None);
        let url = format!("http://{address}");
        let again = run(["call", "create_session", "agent=support", "id=s3", "--url", &url]);
        assert_eq!(again.code, Some(0), "{point}: {again:?}");
        process.terminate();
        assert_eq!(process.ended().code, Some(0), "{point}");
        assert_eq!(run(["verify", db]).code, Some(0), "{point}");
    }
}
