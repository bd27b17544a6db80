//! `abide mcp login`, and an agent that uses the login: the server and its authorization server are threads of this test. The tokens
//! must be in the file of the login only: in no row, and in no output.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value as JsonValue, json};
use tempfile::TempDir;

use crate::program::{Process, abide, run};

/// What no file but that of the login may contain.
const SECRETS: [&str; 3] = ["acc3ss-token", "r3fresh-token", "c0de-of-login"];

/// Whether the tokens of the last login have expired, and its refresh token too.
type Expiry = Arc<AtomicBool>;

/// Starts the servers. Returns their address.
fn servers() -> String {
    servers_with(&Expiry::default())
}

fn servers_with(expired: &Expiry) -> String {
    let expired = Arc::clone(expired);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let own = url.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let url = own.clone();
            let expired = Arc::clone(&expired);
            thread::spawn(move || serve(&stream.unwrap(), &url, &expired));
        }
    });
    url
}

fn serve(stream: &TcpStream, url: &str, expired: &AtomicBool) {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = head[0].split(' ').nth(1).unwrap();
    let is_authorized = head.iter().any(|line| line.ends_with("Bearer acc3ss-token\r\n"));
    let text = String::from_utf8_lossy(&body);
    if path == "/token" && text.contains("code=c0de-of-login") {
        expired.store(false, Ordering::SeqCst);
    }
    // The run has begun when its login expires: the tools are known.
    let has_expired = expired.load(Ordering::SeqCst) && text.contains("tools/call");
    let (status, answer) = answer(path, is_authorized && !has_expired, &body, url);
    let text = if answer.is_null() { String::new() } else { answer.to_string() };
    let challenge =
        format!("www-authenticate: Bearer scope=\"read\", resource_metadata=\"{url}/meta\"\r\n");
    let challenge = if status == 401 { challenge } else { String::new() };
    let length = text.len();
    let response = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{challenge}content-length: {length}\r\nconnection: close\r\n\r\n{text}"
    );
    let mut stream = stream;
    let _ = stream.write_all(response.as_bytes());
}

fn answer(path: &str, is_authorized: bool, body: &[u8], url: &str) -> (u16, JsonValue) {
    match path {
        "/meta" => (200, json!({"resource": format!("{url}/mcp"), "authorization_servers": [url]})),
        "/.well-known/oauth-authorization-server" => (
            200,
            json!({
                "issuer": url,
                "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}/token"),
                "registration_endpoint": format!("{url}/register"),
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }),
        ),
        "/register" => (201, json!({"client_id": "registered"})),
        "/token" if String::from_utf8_lossy(body).contains("code=c0de-of-login") => (
            200,
            json!({"access_token": "acc3ss-token", "token_type": "Bearer", "expires_in": 3600,
                "refresh_token": "r3fresh-token"}),
        ),
        "/token" => (400, json!({"error": "invalid_grant"})),
        "/mcp" if !is_authorized => (401, JsonValue::Null),
        "/mcp" => {
            let message: JsonValue = serde_json::from_slice(body).unwrap_or_default();
            let result = match message["method"].as_str() {
                Some("initialize") => json!({"protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}),
                Some("tools/list") => {
                    json!({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]})
                }
                Some("tools/call") => {
                    json!({"content": [{"type": "text", "text": "It is there."}]})
                }
                Some(_) if message["id"].is_null() => return (202, JsonValue::Null),
                Some(_) => {
                    let error = json!({"code": -32601, "message": "unknown method"});
                    return (200, json!({"jsonrpc": "2.0", "id": message["id"], "error": error}));
                }
                None => return (405, JsonValue::Null),
            };
            (200, json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        }
        _ => (404, JsonValue::Null),
    }
}

/// A folder of agents that use the server.
fn agents(url: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "mcp_servers: [{{ name: shop, url: '{url}/mcp' }}]\n\
         models: {{ providers: [{{ id: script, kind: script, script: answers.yaml, models: [m] }}] }}\n"
    );
    fs::create_dir(folder.path().join("agents")).unwrap();
    for (name, text) in [
        ("abide.yaml", config.as_str()),
        ("answers.yaml", "answers: [{ calls: [{ name: shop_look }] }, { text: Done. }]"),
        ("agents/clerk.yaml", "tools: [shop_look]"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Begins a login. Returns the process, and the address of its redirect with the parameters of a good answer.
fn begin(folder: &Path) -> (Process, String) {
    let folder = folder.to_str().unwrap();
    let args = ["mcp", "login", "shop", "--agents", folder, "--json"];
    let process = Process::spawn(abide().args(args).stdin(Stdio::piped()));
    let started: JsonValue = serde_json::from_str(&process.line()).unwrap();
    assert_eq!(started["scopes"], json!(["read"]));
    let url = started["url"].as_str().unwrap();
    let parameter = |name: &str| {
        let at = url.find(&format!("{name}=")).unwrap() + name.len() + 1;
        url[at..].split('&').next().unwrap().to_owned()
    };
    let redirect = parameter("redirect_uri").replace("%3A", ":").replace("%2F", "/");
    let address = format!("{redirect}?code=c0de-of-login&state={}", parameter("state"));
    (process, address)
}

/// What a browser shows at an address.
fn browse(address: &str) -> String {
    let (host, path) = address.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    let mut shown = String::new();
    let _ = stream.read_to_string(&mut shown);
    shown
}

#[test]
fn an_agent_uses_the_login_of_a_person() {
    let folder = agents(&servers());
    let path = folder.path().to_str().unwrap().to_owned();
    let db = folder.path().join("a.db").display().to_string();
    run(["db", "create", &db]).good();
    let arguments = ["agent", "run", "clerk", "Look.", "--agents", &path, "--db", &db];
    let before = run(arguments);
    assert_eq!(before.code, Some(1), "{before:?}");
    assert!(before.stderr.contains("run `abide mcp login shop`"), "{before:?}");
    let (process, address) = begin(folder.path());
    // Another page of the browser cannot end the login.
    let foreign = browse(&format!("{}0", address));
    assert!(foreign.contains("The login is not complete."), "{foreign}");
    assert_eq!(browse(&address.replace("/callback", "/other")), "");
    let shown = browse(&address);
    assert!(shown.contains("The login is complete."), "{shown}");
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let login = folder.path().join("logins/shop.json");
    assert_eq!(fs::metadata(&login).unwrap().permissions().mode() & 0o777, 0o600);
    let after = run(arguments);
    assert_eq!(after.code, Some(0), "{after:?}");
    assert!(after.stdout.contains("It is there."), "{after:?}");
    let outputs = [before.stderr, ended.stdout, ended.stderr, after.stdout, after.stderr].concat();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let file = entry.unwrap().path();
        if file.is_file() {
            let text = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
            for secret in SECRETS {
                assert!(!text.contains(secret), "{secret} is in {}", file.display());
                assert!(!outputs.contains(secret), "{secret} is in {outputs}");
            }
        }
    }
    run(["mcp", "logout", "shop", "--agents", &path]).good();
    assert!(!login.exists());
}

/// Class: a problem that neither the model nor a retry can solve. The command was silent while the call was retried, and then the model
/// got the error. `--yes` approves calls, but it cannot log in.
#[test]
fn a_login_that_expires_in_a_run_interrupts_it_with_the_command() {
    let expired = Expiry::default();
    let folder = agents(&servers_with(&expired));
    let path = folder.path().to_str().unwrap().to_owned();
    let db = folder.path().join("a.db").display().to_string();
    let log_in = || {
        let (process, address) = begin(folder.path());
        browse(&address);
        assert_eq!(process.ended().code, Some(0));
    };
    log_in();
    expired.store(true, Ordering::SeqCst);
    let arguments =
        ["agent", "run", "clerk", "Look.", "--yes", "--id", "r1", "--agents", &path, "--db", &db];
    let waits = run(arguments);
    assert_eq!(waits.code, Some(5), "{waits:?}");
    assert!(waits.stderr.contains("run `abide mcp login shop`; then accept"), "{waits:?}");
    log_in();
    let sql = "SELECT call_id FROM approvals WHERE status = 'pending'";
    let asked = run(["sql", "--db", &db, "--json", sql]).good();
    let asked: JsonValue = serde_json::from_str(&asked).unwrap();
    let call_id = asked["rows"][0][0].as_str().or(asked["rows"][0]["call_id"].as_str()).unwrap();
    assert!(waits.stderr.contains(&format!("call_id={call_id}")), "{waits:?}");
    let approve = format!("call_id={call_id}");
    run(["call", "--db", &db, "decide_approval", &approve, "decision=approve"]).good();
    let done = run(arguments);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("It is there."), "{done:?}");
}

/// The browser runs on another machine: its last page cannot be shown, but its address can be pasted.
#[test]
fn the_address_of_the_last_page_can_be_pasted() {
    let folder = agents(&servers());
    let (mut process, address) = begin(folder.path());
    let mut stdin = process.stdin();
    writeln!(stdin, "http://127.0.0.1:1/callback?code=x&state=y\n{address}").unwrap();
    let ended = process.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("the answer does not belong to this login"), "{ended:?}");
    assert!(folder.path().join("logins/shop.json").exists());
}

#[test]
fn mistakes_are_explained() {
    let folder = agents("http://127.0.0.1:1");
    let path = folder.path().to_str().unwrap();
    let unknown = run(["mcp", "login", "shopp", "--agents", path]);
    assert!(
        unknown.stderr.contains("abide.yaml has no MCP server shopp   [not_found]"),
        "{unknown:?}"
    );
    assert!(unknown.stderr.contains("hint: its servers are shop"), "{unknown:?}");
    let away = run(["mcp", "login", "shop", "--agents", path]);
    assert_eq!(away.code, Some(1), "{away:?}");
    assert!(away.stderr.contains("[oauth_unavailable]"), "{away:?}");
    let none = run(["mcp", "logout", "shop", "--agents", path]);
    assert!(none.stderr.contains("there is no login to the MCP server shop"), "{none:?}");
    let config =
        "mcp_servers: [{ name: shop, url: 'https://shop.example', oauth: { scope: [a] } }]\n";
    fs::write(folder.path().join("abide.yaml"), config).unwrap();
    let misspelt = run(["agent", "check", "--agents", path]);
    let shown = [misspelt.stdout, misspelt.stderr].concat();
    assert!(shown.contains("scopes"), "{shown}");
}

/// The command said that its output could not be written.
#[test]
fn a_redirect_port_that_is_in_use_is_named() {
    let folder = agents("http://127.0.0.1:1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = format!(
        "mcp_servers: [{{ name: shop, url: 'https://shop.example', oauth: {{ redirect_port: {port} }} }}]\n"
    );
    fs::write(folder.path().join("abide.yaml"), config).unwrap();
    let refused = run(["mcp", "login", "shop", "--agents", folder.path().to_str().unwrap()]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let detail = format!("port {port}, to which the browser is redirected, is in use   [conflict]");
    assert!(refused.stderr.contains(&detail), "{refused:?}");
    assert!(refused.stderr.contains("redirect_port"), "{refused:?}");
}
