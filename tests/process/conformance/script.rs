//! A server that the runner plays, message by message.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value as JsonValue, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use super::answer::matches;

pub(super) struct Script {
    pub(super) port: u16,
    listener: TcpListener,
    /// The connection that was accepted last.
    current: Option<WebSocketStream<TcpStream>>,
}

impl Script {
    pub(super) async fn start() -> Script {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Script { port, listener, current: None }
    }

    /// Waits for the next connection, and greets it.
    pub(super) async fn accept(&mut self, fields: &JsonValue) {
        let (socket, _) = self.listener.accept().await.unwrap();
        let accepted = accept_hdr_async(socket, with_protocol).await.unwrap();
        self.current = Some(accepted);
        let mut hello = json!({"op": "hello", "server": "abide", "version": "0.1.0"});
        for (name, value) in fields.as_object().unwrap() {
            hello[name] = value.clone();
        }
        self.send_message(&hello).await;
    }

    /// Waits for the next connection, and closes it before the handshake is answered or before the greeting.
    pub(super) async fn refuse(&mut self, point: &JsonValue) -> Result<(), String> {
        let (socket, _) = self.listener.accept().await.unwrap();
        match point.as_str() {
            Some("handshake") => drop(socket),
            Some("hello") => drop(accept_hdr_async(socket, with_protocol).await.unwrap()),
            _ => return Err(format!("a connection cannot be refused at {point}")),
        }
        Ok(())
    }

    /// The next message of the client, which must have these fields.
    pub(super) async fn receive(&mut self, expected: &JsonValue) -> Result<JsonValue, String> {
        let current = self.current.as_mut().ok_or("there is no connection")?;
        loop {
            let message = match current.next().await {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                other => return Err(format!("instead of a message: {other:?}")),
            };
            let message: JsonValue = serde_json::from_str(&message).unwrap();
            let op = &message["op"];
            if *op != expected["op"] && (op == "ping" || op == "unsubscribe") {
                continue;
            }
            let is_so = expected.as_object().unwrap().iter().all(|(name, value)| match value {
                JsonValue::Null => message[name].is_null(),
                value => matches(value, &message[name]),
            });
            return if is_so { Ok(message) } else { Err(format!("the message is {message}")) };
        }
    }

    pub(super) async fn send_message(&mut self, message: &JsonValue) {
        let current = self.current.as_mut().expect("a connection");
        current.send(Message::text(message.to_string())).await.unwrap();
    }

    /// Closes the connection without a close frame.
    pub(super) fn drop(&mut self) {
        self.current = None;
    }
}

#[expect(clippy::result_large_err, reason = "the type of the library's callback")]
fn with_protocol(
    _: &Request,
    mut response: Response,
) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
    let protocol = HeaderValue::from_static("abide.v1");
    response.headers_mut().insert("sec-websocket-protocol", protocol);
    Ok(response)
}
