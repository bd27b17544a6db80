//! A WebSocket client with little memory; one process can hold ten thousand.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value as JsonValue;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::protocol::{Message, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// See the [module](self).
pub(crate) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Connects and sends hello.
    pub(crate) async fn connect(address: SocketAddr, token: &str) -> Result<Socket, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut request = format!("ws://{address}/v1/ws").into_client_request()?;
        let headers = request.headers_mut();
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("abide.v1"));
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}"))?);
        let little = WebSocketConfig::default().read_buffer_size(4 << 10).write_buffer_size(0);
        let little = little.max_message_size(None).max_frame_size(None);
        let (socket, _) = client_async_with_config(request, stream, Some(little)).await?;
        Ok(Socket(socket))
    }

    /// Sends a message.
    pub(crate) async fn send(&mut self, message: &JsonValue) -> Result<(), Error> {
        self.0.send(Message::text(message.to_string())).await
    }

    /// The next message, except pings; `None` once it is closed.
    pub(crate) async fn receive(&mut self) -> Result<Option<JsonValue>, Error> {
        loop {
            match self.0.next().await.transpose()? {
                Some(Message::Text(text)) => {
                    return Ok(Some(serde_json::from_str(&text).unwrap_or_default()));
                }
                Some(Message::Close(_)) | None => return Ok(None),
                Some(_) => {}
            }
        }
    }

    /// Waits for a message of this kind.
    pub(crate) async fn receive_of(&mut self, op: &str) -> Result<JsonValue, Error> {
        loop {
            match self.receive().await? {
                Some(message) if message["op"] == op => return Ok(message),
                Some(message) if message["op"] == "error" => return Ok(message),
                Some(_) => {}
                None => return Err(Error::ConnectionClosed),
            }
        }
    }

    /// The raw stream, to send invalid frames.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.0.into_inner()
    }
}
