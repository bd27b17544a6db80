//! Rule: only some parts of the program use sockets. `ARCHITECTURE.md` names them.

use super::Finding;
use super::source::{File, Source, is_word};

/// Crates whose code is in programs of users.
const SHIPPED: [&str; 9] = [
    "agent/src/",
    "cli/src/",
    "client-sdk/rust/src/",
    "engine/",
    "examples/",
    "reducers/",
    "schema/",
    "server/src/",
    "server/protocols/src/",
];

/// Types and crates that open sockets.
const NAMES: [&str; 6] =
    ["reqwest", "TcpListener", "TcpStream", "UdpSocket", "UnixListener", "UnixStream"];

/// Places that the page names.
const NAMED: [&str; 6] = [
    "agent/src/trace/sink.rs",
    "agent/src/catalog/mlflow.rs",
    "cli/src/health.rs",
    "cli/src/http_client.rs",
    "cli/src/open/",
    "cli/src/mcp/",
];

/// The server, the remote half of the SDK, and the commands that configure a listener or a proxy.
const OTHERS: [&str; 4] =
    ["server/src/", "client-sdk/rust/src/remote/", "cli/src/serve", "cli/src/mcp.rs"];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let path = source.path.as_str();
    if !is_in(path, &SHIPPED)
        || is_in(path, &NAMED)
        || is_in(path, &OTHERS)
        || path.ends_with("tests.rs")
    {
        return Vec::new();
    }
    source
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.test && names_sockets(&line.code))
        .map(|(at, _)| {
            let why =
                "uses sockets: name the file in ARCHITECTURE.md and in xtask/src/tidy/sockets.rs";
            Finding::new(format!("{path}:{}", at + 1), why)
        })
        .collect()
}

/// Checks that the page names the places.
pub(crate) fn check_page(file: &File) -> Vec<Finding> {
    if file.path != "ARCHITECTURE.md" {
        return Vec::new();
    }
    NAMED
        .into_iter()
        .filter(|place| !file.text.contains(&format!("`{place}`")))
        .map(|place| Finding::new(&file.path, format!("does not name {place}, which uses sockets")))
        .collect()
}

fn is_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn names_sockets(code: &str) -> bool {
    NAMES.iter().any(|name| {
        code.match_indices(name).any(|(at, _)| {
            let after = &code[at + name.len()..];
            !code[..at].ends_with(is_word) && !after.starts_with(is_word)
        })
    })
}
