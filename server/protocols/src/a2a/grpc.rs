//! The binding gRPC: `POST /lf.a2a.v1.A2AService/{method}` over HTTP/2. The field `tenant` of a request names the agent, as
//! its card says.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide_engine::buffers::{Account, Reservation};
use abide_schema::limits::COUNTED_BYTES;
use abide_schema::{Code, Refusal};
use abide_server::port::{
    ConnectionPermit, ParseTurn, RequestBytes, SessionExtension, off_the_runtime,
};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::http::header::{CONTENT_TYPE, TRAILER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use futures_util::{Stream, StreamExt as _, stream};
use hyper::body::{Body as HttpBody, Frame};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value as JsonValue;

use super::binding::{A2aResponse, TaskStream, check_version};
use super::card;
use super::error::{A2aError, A2aResult, Kind, Status};
use super::operations::{Operation, Peer};
use super::proto::{
    CARD, EMPTY, FIELDS, GET_REQUEST, LIST_REQUEST, LIST_RESPONSE, MessageType, NotDecoded,
    PUSH_CONFIG, PUSH_CONFIG_REQUEST, PUSH_CONFIGS, PUSH_CONFIGS_REQUEST, SEND_REQUEST,
    SEND_RESPONSE, STREAM_RESPONSE, TASK, TASK_REQUEST, TENANT, write_bytes,
};
use super::task::Framing;
use crate::follow::texts_of_turn;
use crate::state::ProtocolState;

/// Returns the types of the request and the response of an operation.
fn message_types(operation: Operation) -> (MessageType, MessageType) {
    match operation {
        Operation::SendMessage => (SEND_REQUEST, SEND_RESPONSE),
        Operation::SendStreamingMessage => (SEND_REQUEST, STREAM_RESPONSE),
        Operation::GetTask => (GET_REQUEST, TASK),
        Operation::ListTasks => (LIST_REQUEST, LIST_RESPONSE),
        Operation::CancelTask => (TASK_REQUEST, TASK),
        Operation::SubscribeToTask => (TASK_REQUEST, STREAM_RESPONSE),
        Operation::CreatePushConfig => (PUSH_CONFIG, PUSH_CONFIG),
        Operation::GetPushConfig => (PUSH_CONFIG_REQUEST, PUSH_CONFIG),
        Operation::ListPushConfigs => (PUSH_CONFIGS_REQUEST, PUSH_CONFIGS),
        Operation::DeletePushConfig => (PUSH_CONFIG_REQUEST, EMPTY),
        Operation::GetExtendedAgentCard => (TENANT, CARD),
    }
}

/// Performs a request.
pub(crate) async fn call(
    State(app): State<ProtocolState>,
    Extension(session): SessionExtension,
    Extension(place): Extension<ConnectionPermit>,
    Path(method): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    content: RequestBytes,
) -> Response {
    let account = app.engine.buffers().account(&session.caller);
    let answer = async {
        let operation = Operation::from_name(&method)
            .ok_or_else(|| A2aError::new(Kind::MethodNotFound, format!("there is no {method}")))?;
        check_version(&headers, None)?;
        let (request, response) = message_types(operation);
        let message = unframe_message(&content.bytes)?;
        let turn = content.turn().await;
        let params = request.decode(message).map_err(|why| match why {
            NotDecoded::Malformed => A2aError::invalid("the message is not valid for this method"),
            NotDecoded::TooManyFields => {
                let detail = format!("the message has more than {FIELDS} fields");
                let hint = "send a large list as one string";
                Refusal::new(Code::LimitExceeded, detail).hint(hint).into()
            }
        })?;
        drop(turn);
        let agent = match params["tenant"].as_str().filter(|tenant| !tenant.is_empty()) {
            Some(tenant) => tenant.to_owned(),
            None => card::find_only_agent(&app, &session.caller).await?,
        };
        let base = app.port.base_url(&uri, &headers);
        let bytes = content.bytes.len();
        let hold = content.into_hold();
        let peer = Peer { app, session, place, agent, bytes, hold, base };
        peer.perform(operation, params, Framing::Lines).await.map(|answer| (answer, response))
    };
    match answer.await {
        Ok((A2aResponse::Value(value, permit), kind)) => {
            let sent =
                encode_counted(&account, permit, move || frame_message(&kind.encode(&value))).await;
            match sent {
                Ok((message, hold)) => {
                    respond(stream::iter([Ok(message), Err(OK)]).map(move |part| {
                        let _counted = &hold;
                        part
                    }))
                }
                Err(error) => respond(stream::iter([Err(error.to_status())])),
            }
        }
        Ok((A2aResponse::Stream(task), _)) => respond(message_stream(*task)),
        Err(error) => respond(stream::iter([Err(error.to_status())])),
    }
}

/// Returns a message, and its reservation until it is sent.
async fn encode_counted(
    account: &Account,
    permit: Option<ParseTurn>,
    encode: impl FnOnce() -> Bytes + Send + 'static,
) -> A2aResult<(Bytes, Reservation)> {
    let message = off_the_runtime(encode).await?;
    drop(permit);
    let mut hold = account.reserve();
    if message.len() >= COUNTED_BYTES {
        hold.grow(message.len())?;
    }
    Ok((message, hold))
}

/// Returns the message in the body of a request.
fn unframe_message(body: &[u8]) -> A2aResult<&[u8]> {
    let (head, message) = body
        .split_at_checked(5)
        .ok_or_else(|| A2aError::invalid("the body is not a message of gRPC"))?;
    if head[0] != 0 {
        return Err(A2aError::invalid("compressed messages are not supported"));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
    if message.len() == length as usize {
        Ok(message)
    } else {
        Err(A2aError::invalid("the body is not one message"))
    }
}

/// Returns a message with its length.
fn frame_message(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

/// The status of a call that was performed.
const OK: Status = Status { code: 0, message: String::new(), reason: String::new(), domain: "" };

/// Returns the messages of a stream, and its status.
fn message_stream(task: TaskStream) -> impl Stream<Item = Result<Bytes, Status>> + Send {
    let TaskStream { follower, encoder, place } = task;
    let texts = texts_of_turn(follower, encoder, place);
    // Without an error among the texts, the end of the texts is the end of the task.
    let ended = stream::iter([Err(OK)]);
    texts.flat_map(|text| stream::iter(messages_from_lines(&text))).chain(ended)
}

/// Returns the messages of lines. Text between the lines keeps the connection of other bindings alive.
fn messages_from_lines(text: &str) -> Vec<Result<Bytes, Status>> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<JsonValue>(line).ok());
    let items = lines.map(|line| match line.get("error") {
        Some(error) => {
            let code = error["code"].as_u64().and_then(|code| u8::try_from(code).ok());
            let is_ours = error["domain"] == "abide";
            Err(Status {
                code: code.unwrap_or(2),
                message: error["message"].as_str().unwrap_or_default().to_owned(),
                reason: error["reason"].as_str().unwrap_or_default().to_owned(),
                domain: if is_ours { "abide" } else { "a2a-protocol.org" },
            })
        }
        None => Ok(frame_message(&STREAM_RESPONSE.encode(&line))),
    });
    items.collect()
}

/// Returns the response with these messages until the first status, which is its end.
fn respond(messages: impl Stream<Item = Result<Bytes, Status>> + Send + 'static) -> Response {
    let body = GrpcBody { messages: Some(Box::pin(messages)) };
    // HTTP/1.1 sends only the trailers that are announced.
    let trailers = "grpc-status, grpc-message, grpc-status-details-bin";
    let headers = [(CONTENT_TYPE, "application/grpc+proto"), (TRAILER, trailers)];
    (headers, Body::new(body)).into_response()
}

/// The messages of a response.
type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// The body of a response: messages, and the status as trailers.
struct GrpcBody {
    /// `None` after the status.
    messages: Option<Messages>,
}

impl HttpBody for GrpcBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        match messages.as_mut().poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(message))) => Poll::Ready(Some(Ok(Frame::data(message)))),
            Poll::Ready(Some(Err(status))) => {
                self.messages = None;
                Poll::Ready(Some(Ok(Frame::trailers(status_trailers(&status)))))
            }
            Poll::Ready(None) => Poll::Ready(None),
        }
    }
}

/// The characters that the message of a status percent-encodes.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

fn status_trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    insert_trailer(&mut trailers, "grpc-status", status.code.to_string());
    if status.code != 0 {
        let message = utf8_percent_encode(&status.message, ESCAPED).to_string();
        insert_trailer(&mut trailers, "grpc-message", message);
        let details = BASE64_STANDARD_NO_PAD.encode(status_details(status));
        insert_trailer(&mut trailers, "grpc-status-details-bin", details);
    }
    trailers
}

fn insert_trailer(trailers: &mut HeaderMap, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        trailers.insert(HeaderName::from_static(name), value);
    }
}

/// Returns a `google.rpc.Status` with a `google.rpc.ErrorInfo`.
fn status_details(status: &Status) -> Vec<u8> {
    let mut info = Vec::new();
    let mut any = Vec::new();
    write_bytes(1, status.reason.as_bytes(), &mut info);
    write_bytes(2, status.domain.as_bytes(), &mut info);
    write_bytes(1, b"type.googleapis.com/google.rpc.ErrorInfo", &mut any);
    write_bytes(2, &info, &mut any);
    let mut out = vec![1 << 3, status.code];
    write_bytes(2, status.message.as_bytes(), &mut out);
    write_bytes(3, &any, &mut out);
    out
}
