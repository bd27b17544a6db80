//! A deployment with two tenants, set up by the command line alone, as on the README's page.

use std::fs;
use std::path::Path;

use serde_json::{Value as JsonValue, json};

use crate::program::{ExitedProcess, Process, abide, run};
use crate::server::Server;

/// Creates a token as a shell would: stdout is the token.
#[track_caller]
fn token(server: &Server, by: &str, words: &[&str]) -> String {
    let ended = server.run(&[&["token", "create"], words, &["--token", by]].concat());
    assert!(ended.stderr.contains("It is printed only once"), "{ended:?}");
    let token = ended.good().trim_end().to_owned();
    assert!(token.starts_with("abide_") && !token.contains(char::is_whitespace), "{token}");
    token
}

fn run_as(server: &Server, token: &str, words: &[&str]) -> ExitedProcess {
    server.run(&[words, &["--token", token, "--json"]].concat())
}

#[track_caller]
fn refused(ended: &ExitedProcess, code: &str) -> JsonValue {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let problem: JsonValue = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(problem["code"], code, "{problem}");
    problem
}

/// A server of a file whose first admin was created without a server.
fn deployment() -> (Server, String) {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db_text = db.to_str().unwrap();
    let root =
        run(["token", "create", "root", "--role", "admin", "--capability", "*", "--db", db_text]);
    let root = root.good().trim_end().to_owned();
    (Server::start_in(folder), root)
}

#[test]
fn two_tenants_in_five_minutes() {
    let (server, root) = deployment();
    let nobody = server.run(&["sql", "SELECT 1", "--json"]);
    refused(&nobody, "unauthenticated");
    let acme = token(&server, &root, &["acme", "--role", "app", "--scope", "tenant=acme"]);
    let zeta = token(&server, &root, &["zeta", "--role", "app", "--scope", "tenant=zeta"]);
    let made = run_as(&server, &acme, &["call", "create_session", "agent=support", "id=s1"]).json();
    assert_eq!(made["result"]["scope"], r#"{"tenant":"acme"}"#);
    let say = ["call", "append_message", "session_id=s1", "role=user", "content=hi"];
    assert_eq!(run_as(&server, &acme, &say).json()["seq"], 8);
    let of_another = refused(&run_as(&server, &zeta, &say), "not_found");
    let say = ["call", "append_message", "session_id=s2", "role=user", "content=hi"];
    let of_nobody = refused(&run_as(&server, &zeta, &say), "not_found");
    assert_eq!(of_another.to_string().replace("s1", "s2"), of_nobody.to_string());
    refused(&run_as(&server, &zeta, &["identity", "create", "me", "--role", "admin"]), "denied");
}

/// Regression: `show` and `render` did not find the prompt that a tenant had stored under the name.
#[test]
fn a_tenant_shows_its_prompt_by_the_name_that_it_chose() {
    let (server, root) = deployment();
    let acme = token(&server, &root, &["acme", "--role", "app", "--scope", "tenant=acme"]);
    let text = server.sibling("greet.md");
    fs::write(&text, "Hello from {{firm}}.").unwrap();
    run_as(&server, &acme, &["prompt", "put", "greet", text.to_str().unwrap()]).good();
    let shown = run_as(&server, &acme, &["prompt", "show", "greet@1"]).json();
    assert_eq!(shown["text"], "Hello from {{firm}}.", "{shown}");
    let rendered = run_as(&server, &acme, &["prompt", "render", "greet", "firm=Acme"]).good();
    assert!(rendered.contains("Hello from Acme."), "{rendered}");
    let zeta = token(&server, &root, &["zeta", "--role", "app", "--scope", "tenant=zeta"]);
    refused(&run_as(&server, &zeta, &["prompt", "show", "greet"]), "not_found");
}

#[test]
fn tokens_are_listed_and_revoked_and_identities_disabled() {
    let (server, root) = deployment();
    let acme =
        token(&server, &root, &["acme", "--role", "app", "--expires", "30d", "--label", "web"]);
    let second = token(&server, &root, &["acme"]);
    let listed = run_as(&server, &root, &["token", "list"]).json();
    let column = |name: &str| {
        listed["columns"].as_array().unwrap().iter().position(|column| column == name).unwrap()
    };
    let rows = listed["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    let of_acme: Vec<&JsonValue> =
        rows.iter().filter(|row| row[column("identity_id")] == "acme").collect();
    assert_eq!(of_acme.len(), 2);
    assert!(!listed.to_string().contains(acme.split('_').nth(2).unwrap()), "{listed}");
    assert!(
        of_acme.iter().any(
            |row| acme.ends_with(row[column("ends")].as_str().unwrap().trim_start_matches('…'))
        )
    );
    // The token itself is accepted as its id.
    let revoked = run_as(&server, &root, &["token", "revoke", &acme]).json();
    assert_eq!(revoked["result"]["id"], acme.split('_').nth(1).unwrap());
    let create = ["call", "create_session", "agent=a"];
    let problem = refused(&run_as(&server, &acme, &create), "unauthenticated");
    assert!(problem["detail"].as_str().unwrap().contains("was revoked at"), "{problem}");
    run_as(&server, &second, &create).good();
    run_as(&server, &root, &["identity", "disable", "acme", "--reason", "gone"]).good();
    refused(&run_as(&server, &second, &create), "unauthenticated");
    run_as(&server, &root, &["identity", "enable", "acme"]).good();
    run_as(&server, &second, &create).good();
    run_as(&server, &root, &["identity", "change", "acme", "--role", "auditor"]).good();
    refused(&run_as(&server, &second, &create), "denied");
}

#[test]
fn a_custom_role_and_rate() {
    let (server, root) = deployment();
    run_as(&server, &root, &["role", "set", "greeter", "--allow", "create_session,append_message"])
        .good();
    let words = ["greta", "--role", "greeter", "--quota", "2/1d"];
    let greta = token(&server, &root, &words);
    run_as(&server, &greta, &["call", "create_session", "agent=a", "id=s"]).good();
    let ended = run_as(&server, &greta, &["call", "complete_session", "session_id=s"]);
    refused(&ended, "denied");
    let ended = run_as(&server, &greta, &["call", "create_session", "agent=a"]);
    let problem = refused(&ended, "rate_limited");
    assert_eq!((&problem["status"], &problem["retryable"]), (&json!(429), &json!(true)));
    assert!(problem["retry_after_ms"].as_u64().unwrap() <= 86_400_000);
    let roles = run_as(&server, &root, &["role", "list"]).json();
    assert_eq!(roles["rows"][0][0], "greeter");
    run_as(&server, &root, &["role", "remove", "greeter"]).good();
}

/// The file contains no token, and neither does any later output about one.
#[test]
fn a_token_is_shown_once() {
    let (mut server, root) = deployment();
    let acme = token(&server, &root, &["acme", "--role", "app"]);
    let secret = acme.split('_').nth(2).unwrap().to_owned();
    for words in [&["events"][..], &["token", "list"], &["identity", "list"]] {
        let ended = run_as(&server, &root, words);
        assert!(!ended.stdout.contains(&secret) && ended.code == Some(0), "{ended:?}");
    }
    server.terminate();
    server.ended();
    let in_file = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    for entry in fs::read_dir(server.folder()).unwrap() {
        assert!(!in_file(&entry.unwrap().path()));
    }
    let wrong =
        run(["token", "create", "x", "--capability", "y", "--db", server.db().to_str().unwrap()]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

/// A server that starts in a shell with a token for other commands: the token can still be revoked
/// through the file.
#[test]
fn a_token_in_the_servers_own_shell_can_be_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    let root =
        run(["token", "create", "root", "--role", "admin", "--capability", "*", "--db", db]).good();
    let root = root.trim_end();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--db", db, "--json"];
    let serving = Process::spawn(abide().env("ABIDE_TOKEN", root).args(serve));
    let output: JsonValue = serde_json::from_str(&serving.line()).unwrap();
    let url = format!("http://{}", output["listening"].as_str().unwrap());
    let by_root = |words: &[&str]| {
        run(words.iter().copied().chain(["--token", root, "--url", &url, "--json"]))
    };
    let made = by_root(&["call", "create_session", "agent=a"]).json();
    let caller = by_root(&["sql", "SELECT caller FROM events ORDER BY seq DESC LIMIT 1"]).json();
    assert_eq!((&made["seq"], &caller["rows"][0][0]), (&json!(3), &json!("root")));
    by_root(&["token", "revoke", root]).good();
    refused(&by_root(&["call", "create_session", "agent=a"]), "unauthenticated");
}

/// Options of `identity change` replace a value; none could remove it.
#[test]
fn rights_of_an_identity_are_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    run(["db", "create", db]).good();
    let by = |words: &[&str]| run([words, &["--db", db, "--json"]].concat());
    let rights = "--role app --capability refunds --scope tenant=a --rate 10/1s --quota 9/1d";
    let rights: Vec<&str> = rights.split(' ').collect();
    by(&[&["identity", "create", "ann"], &rights[..]].concat()).good();
    let stored = || {
        let sql = "SELECT capabilities, scope, limits FROM identities";
        by(&["sql", sql]).json()["rows"][0].clone()
    };
    by(&["identity", "change", "ann", "--clear", "capabilities"]).good();
    let limits = r#"{"quota":{"calls":9,"per_ms":86400000},"rate":{"calls":10,"per_ms":1000}}"#;
    assert_eq!(stored(), json!(["[]", r#"{"tenant":"a"}"#, limits]));
    by(&["identity", "change", "ann", "--clear", "scope,limits"]).good();
    assert_eq!(stored(), json!(["[]", "{}", null]));
    let both = by(&["identity", "change", "ann", "--clear", "scope", "--scope", "tenant=b"]);
    assert_eq!(both.code, Some(2), "{both:?}");
    assert!(both.stderr.contains("--clear scope removes what another option sets"), "{both:?}");
}

/// It started open to all programs of the machine, although its operator had given a token.
#[test]
fn a_server_refuses_a_token_of_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let create = ["token", "create", "root", "--role", "admin", "--capability", "*", "--db"];
    let token = run(create.into_iter().chain([&*at("other.db")])).good();
    run(["db", "create", &at("open.db")]).good();
    for db in ["open.db", "new.db"] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--db", &at(db)];
        let ended =
            Process::spawn(abide().env("ABIDE_TOKEN", token.trim_end()).args(serve)).ended();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let output = ended.stderr.replace(&*folder.path().to_string_lossy(), "");
        let expected = format!(
            "error: /{db} does not have the token of --token or ABIDE_TOKEN   [unauthenticated]\n  \
             hint: unset ABIDE_TOKEN and ABIDE_TOKEN_FILE, or create a token of this file: \
             `abide token create root --role admin --capability '*' --db /{db}`\n"
        );
        assert_eq!(output, expected);
    }
    assert!(!folder.path().join("new.db").exists());
}

/// After a first token of a tenant, nothing says that no caller can administer the server any more.
#[test]
fn a_first_token_without_the_role_admin_warns() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    let warning = format!(
        "warning: no token of role admin without a scope and with the capability '*' exists, so nobody can manage every identity; create one with `abide token create root --role admin --capability '*' --db {db}`\n"
    );
    let tenant = ["--role", "admin", "--scope", "tenant=a"];
    let create = |id: &'static str, words: &[&'static str]| {
        let ended = run([&["token", "create", id, "--db", db], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stderr.contains(&warning)
    };
    assert!(create("acme", &tenant));
    assert!(create("acme", &[]));
    assert!(create("app", &["--role", "app"]));
    assert!(!create("root", &["--role", "admin", "--capability", "*"]));
    assert!(!create("root", &[]) && !create("app", &[]));
}

/// The server accepts other machines only once there is a token.
#[test]
fn other_machines_need_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    let refused = run(["serve", "--listen", "0.0.0.0:0", "--db", db]);
    assert_eq!(refused.code, Some(1));
    let hint = format!(
        "listen on 127.0.0.1, or create a token first: \
         `abide token create root --role admin --capability '*' --db {db}`\n"
    );
    assert!(refused.stderr.ends_with(&hint), "{}", refused.stderr);
    run(["token", "create", "root", "--role", "admin", "--capability", "*", "--db", db]).good();
    let serving =
        Process::spawn(abide().args(["serve", "--listen", "0.0.0.0:0", "--db", db, "--json"]));
    let output: JsonValue = serde_json::from_str(&serving.line()).unwrap();
    assert_eq!(output["requires_token"], true);
}

/// A container cannot run `abide token create` before its server.
#[test]
fn the_first_start_creates_a_token() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (db, file) = (path("abide.db"), path("admin.token"));
    let words = ["serve", "--listen", "0.0.0.0:0", "--db", &db, "--first-token", &file, "--json"];
    let start = || {
        let serving = Process::spawn(abide().args(words));
        let output: JsonValue = serde_json::from_str(&serving.line()).unwrap();
        assert_eq!(output["requires_token"], true);
        let port = output["listening"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
        (serving, format!("http://127.0.0.1:{port}"))
    };
    let sql = |url: &str, more: &[&str]| run([&["sql", "SELECT 1", "--url", url], more].concat());

    // A file that is not a token is not overwritten, and nothing is created.
    fs::write(&file, "my notes").unwrap();
    let refused = run(words);
    assert!(refused.stderr.contains("is not a token of Abide"), "{}", refused.stderr);
    assert!(!fs::exists(&db).unwrap());
    fs::remove_file(&file).unwrap();

    let (serving, url) = start();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    sql(&url, &["--token-file", &file]).good();
    assert_eq!(sql(&url, &[]).code, Some(1));
    let by_variable = abide()
        .args(["sql", "SELECT 1", "--url", &url])
        .env("ABIDE_TOKEN_FILE", &file)
        .status()
        .unwrap();
    assert!(by_variable.success());
    drop(serving);

    // Later starts create no further token.
    fs::remove_file(&file).unwrap();
    let (serving, url) = start();
    assert!(!fs::exists(&file).unwrap());
    sql(&url, &["--token", token.trim()]).good();
    drop(serving);

    // The process was killed after it wrote the file and before it stored the token.
    fs::write(&file, &token).unwrap();
    let other = path("other.db");
    let words =
        ["serve", "--listen", "0.0.0.0:0", "--db", &other, "--first-token", &file, "--json"];
    let serving = Process::spawn(abide().args(words));
    let output: JsonValue = serde_json::from_str(&serving.line()).unwrap();
    let port = output["listening"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    sql(&format!("http://127.0.0.1:{port}"), &["--token-file", &file]).good();
    assert_eq!(fs::read_to_string(&file).unwrap(), token);
}

/// A container without its volume would lose the database with the container.
#[test]
fn a_volume_can_be_required() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("abide.db");
    let db = db.to_str().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--db", db, "--require-volume"];
    let refused = run([&serve[..], &["/"]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("no volume is mounted at /"), "{}", refused.stderr);
    assert!(!fs::exists(db).unwrap());
    // Linux mounts it everywhere.
    Process::spawn(abide().args([&serve[..], &["/proc"]].concat())).line();
}

/// A minimal image without root certificates: the reason was "builder error".
#[test]
fn missing_certificates_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = abide();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(folder.path().join("abide.db"));
    serve.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", folder.path());
    let refused = Process::spawn(&mut serve).ended();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("ca-certificates"), "{}", refused.stderr);
    assert!(!fs::exists(folder.path().join("abide.db")).unwrap());
}

/// Two texts of 600 bytes blocked `/health` for 6.3 s, 29 levels of the same survived SIGTERM, and
/// four calls of `instr` took all readers for 17.5 s. Each of them is now refused or answered at
/// once.
#[test]
fn planning_does_not_delay_other_tenants() {
    let (mut server, root) = deployment();
    let zeta = token(&server, &root, &["zeta", "--role", "app", "--scope", "tenant=zeta"]);
    let acme = token(&server, &root, &["acme", "--role", "app", "--scope", "tenant=acme"]);
    let levels: String = (1..29)
        .map(|at| format!(", a{at} AS (SELECT p.x FROM a{} p, a{} q)", at - 1, at - 1))
        .collect();
    let multiplied =
        format!("WITH a0 AS (SELECT 1 x UNION ALL SELECT 2){levels} SELECT * FROM a28");
    let long =
        "SELECT instr(printf('%.*c', 1500000, 'a'), printf('%.*c', 750000, 'a') || 'b') AS n,
        printf('%.*c', 4000000, 'a') LIKE '%' || printf('%.*c', 4000, 'a') || 'b' AS m";
    let multiplied = multiplied.as_str();
    let url = server.url();
    let by_zeta = |sql| run(["sql", sql, "--json", "--token", &zeta, "--url", &url]);
    refused(&by_zeta(multiplied), "limit_exceeded");
    std::thread::scope(|threads| {
        let asked: Vec<_> = (0..8)
            .map(|nth| if nth % 2 == 0 { multiplied } else { long })
            .map(|sql| threads.spawn(move || by_zeta(sql)))
            .collect();
        let begun = std::time::Instant::now();
        for _ in 0..5 {
            run_as(&server, &acme, &["call", "create_session", "agent=a"]).good();
            run_as(&server, &acme, &["sql", "SELECT count(*) FROM sessions"]).good();
        }
        // Fifteen seconds are enough for eleven programs to start on a busy machine.
        assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{:?}", begun.elapsed());
        // Zeta's own statements wait for each other, so on a slow machine some time out.
        for asked in asked {
            asked.join().unwrap();
        }
    });
    server.stop();
}
