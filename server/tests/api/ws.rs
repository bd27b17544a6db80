//! A scripted WebSocket client.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value as JsonValue;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::test_server::TestServer;

pub(crate) struct Socket(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

impl TestServer {
    /// Connects and receives the hello.
    pub(crate) async fn socket(&self) -> Socket {
        let mut socket = self.try_socket("/v1/ws", &[]).await.expect("a WebSocket");
        assert_eq!(socket.receive().await["op"], "hello");
        socket
    }

    /// Connects, or returns the refusal's status and body.
    pub(crate) async fn try_socket(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Socket, (u16, String)> {
        let address = format!("ws://{}{path}", self.address);
        let mut request = address.into_client_request().expect("a request");
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).expect("a header");
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        match connect_async(request).await {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(Error::Http(response)) => {
                let body = response.body().clone().unwrap_or_default();
                Err((response.status().as_u16(), String::from_utf8(body).expect("UTF-8")))
            }
            Err(why) => panic!("{why}"),
        }
    }
}

impl Socket {
    pub(crate) async fn say(&mut self, message: &str) {
        self.0.send(Message::text(message)).await.expect("it listens");
    }

    /// The next message as text.
    pub(crate) async fn receive_text(&mut self) -> String {
        loop {
            match self.0.next().await.expect("the socket is open").expect("the socket is whole") {
                Message::Text(text) => return text.to_string(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn receive(&mut self) -> JsonValue {
        let text = self.receive_text().await;
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    /// The next message of an op; others are skipped.
    pub(crate) async fn receive_op(&mut self, op: &str) -> JsonValue {
        loop {
            let message = self.receive().await;
            if message["op"] == op {
                return message;
            }
        }
    }

    /// Reads until the peer closes.
    pub(crate) async fn closed(&mut self) -> Option<CloseFrame> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Close(frame))) => return frame,
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return None,
            }
        }
    }
}
