//! Messages of the standard protocols to a server in this process: the first byte chooses a protocol, the rest is the body of a
//! request. The server handles them without a panic, and then answers the next client normally.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use abide_engine::{Config, Engine};
use abide_protocols::{AgentProtocols, WebhookFuture, WebhookRequest, WebhookSender};
use abide_schema::Caller;
use abide_server::{AccessConfig, Services, serve_with};
use abide_sim::rig::folder;
use serde_json::json;
use tokio::net::TcpListener;

/// A response that takes longer is a fault of the server: the client has closed its sending side.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a body is sent, and with which headers.
const REQUESTS: [(&str, &str); 12] = [
    ("/a2a/clerk", "a2a-version: 1.0\r\n"),
    ("/a2a/clerk", ""),
    ("/a2a/clerk/message:send", "a2a-version: 1.0\r\n"),
    ("/a2a/clerk/tasks/x/pushNotificationConfigs", "a2a-version: 1.0\r\n"),
    ("/lf.a2a.v1.A2AService/SendMessage", GRPC),
    ("/lf.a2a.v1.A2AService/ListTasks", GRPC),
    ("/lf.a2a.v1.A2AService/CreateTaskPushNotificationConfig", GRPC),
    ("/v1/agents/clerk/ag-ui", ""),
    ("/v1/agents/clerk/chat", ""),
    ("/v1/responses", ""),
    ("/mcp", "mcp-protocol-version: 2025-11-25\r\n"),
    ("/mcp", "mcp-protocol-version: 2026-07-28\r\n"),
];

const GRPC: &str = "a2a-version: 1.0\r\ncontent-type: application/grpc+proto\r\n";

/// See the [module](self).
pub fn run(input: &[u8]) {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    let address = *ADDRESS.get_or_init(begin);
    let Some((choice, body)) = input.split_first() else { return };
    let (path, headers) = REQUESTS[usize::from(*choice) % REQUESTS.len()];
    let mut content = Vec::new();
    if headers == GRPC {
        content.push(0);
        content.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_be_bytes());
    }
    content.extend_from_slice(body);
    let kind = if headers == GRPC { "" } else { "content-type: application/json\r\n" };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         accept: application/json, text/event-stream\r\n{kind}{headers}content-length: {}\r\n\r\n",
        content.len()
    );
    send(address, &[head.as_bytes(), &content].concat(), true);
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let health = send(address, health, false);
    assert!(health.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&health));
}

/// Sends bytes, and reads until the server closes the connection. A client that hangs up does not wait for the end of a task.
fn send(address: SocketAddr, bytes: &[u8], hangs_up: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a TCP socket");
    // The server may close before it has read all.
    let _ = stream.write_all(bytes);
    if hangs_up {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut piece = [0; 4 << 10];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return answer,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            // libFuzzer's alarm, see the target `http`.
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => {
                let request = String::from_utf8_lossy(bytes);
                panic!("the server does not close the connection after {request:?}")
            }
            // Closed with unread bytes.
            Err(_) => return answer,
        }
    }
}

/// No receiver is reached.
#[derive(Debug)]
struct NoReceivers;

impl WebhookSender for NoReceivers {
    fn check(&self, _url: &str) -> Result<(), String> {
        Ok(())
    }

    fn send(&self, _request: WebhookRequest) -> WebhookFuture<'_> {
        Box::pin(std::future::ready(Err("there is no network".to_owned())))
    }
}

/// Starts the server with an agent that all protocols serve. It runs until the process ends.
fn begin() -> SocketAddr {
    let (tell, output) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be had");
        runtime.block_on(async {
            let folder = folder();
            let config = Config::new(abide_reducers::modules());
            let engine =
                Engine::open(folder.path().join("abide.db"), config).expect("a new file opens");
            let definition = json!({"a2a_exposed": true, "mcp_exposed": true});
            let clerk = json!({"name": "clerk", "definition": definition});
            let by = Caller::local();
            engine.call(&by, "register_agent", &clerk, None).await.expect("it is registered");
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it listens");
            tell.send(address).expect("the receiver waits for it");
            let webhooks = Some(std::sync::Arc::new(NoReceivers) as _);
            let protocols = AgentProtocols { webhooks, ..AgentProtocols::default() };
            let protocols = Some(std::sync::Arc::new(protocols) as _);
            let services = Services { protocols, ..Services::default() };
            let access = AccessConfig::loopback();
            let served = serve_with(engine, listener, access, services, std::future::pending());
            served.await.expect("the server runs until the process ends");
        });
    });
    output.recv().expect("the server starts")
}
