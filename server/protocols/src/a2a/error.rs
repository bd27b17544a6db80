//! The errors of A2A, and how each binding shows them.

use abide_schema::{Code, Refusal};
use abide_server::port::json_response;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value as JsonValue, json};

/// The kind of an error: those of A2A, those of JSON-RPC, and refusals of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    TaskNotFound,
    TaskNotCancelable,
    PushNotificationNotSupported,
    UnsupportedOperation,
    ContentTypeNotSupported,
    VersionNotSupported,
    ParseError,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    /// Refused for a reason that A2A does not name.
    Refused(Code),
}

/// An error of an operation.
#[derive(Clone, Debug)]
pub(super) struct A2aError {
    pub(super) kind: Kind,
    pub(super) message: String,
    retry_after_ms: Option<u64>,
}

/// The status of a response in gRPC.
pub(super) struct Status {
    pub(super) code: u8,
    pub(super) message: String,
    pub(super) reason: String,
    pub(super) domain: &'static str,
}

/// The result of an operation.
pub(super) type A2aResult<T> = Result<T, A2aError>;

impl From<Refusal> for A2aError {
    fn from(refusal: Refusal) -> A2aError {
        let kind = match refusal.code {
            Code::BadRequest | Code::BadArguments => Kind::InvalidParams,
            code => Kind::Refused(code),
        };
        abide_server::port::note(&refusal);
        let retry_after_ms = refusal.retry_after_ms;
        let message = match refusal.hint {
            Some(hint) => format!("{} ({hint})", refusal.detail),
            None => refusal.detail,
        };
        A2aError { kind, message, retry_after_ms }
    }
}

impl A2aError {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> A2aError {
        A2aError { kind, message: message.into(), retry_after_ms: None }
    }

    /// For parameters that do not have the form of the protocol.
    pub(super) fn invalid(message: impl Into<String>) -> A2aError {
        A2aError::new(Kind::InvalidParams, message)
    }

    /// For a task that does not exist, is not the agent's, or is not the caller's to see.
    pub(super) fn no_task(id: &str) -> A2aError {
        A2aError::new(Kind::TaskNotFound, format!("there is no task {id}"))
    }

    /// Returns the code in JSON-RPC.
    fn rpc_code(&self) -> i64 {
        match self.kind {
            Kind::TaskNotFound => -32001,
            Kind::TaskNotCancelable => -32002,
            Kind::PushNotificationNotSupported => -32003,
            Kind::UnsupportedOperation => -32004,
            Kind::ContentTypeNotSupported => -32005,
            Kind::VersionNotSupported => -32009,
            Kind::ParseError => -32700,
            Kind::MethodNotFound => -32601,
            Kind::InvalidParams => -32602,
            Kind::InvalidRequest => -32600,
            Kind::Refused(Code::Internal) => -32603,
            // In the range of JSON-RPC for errors of servers, where A2A has none.
            Kind::Refused(_) => -32050,
        }
    }

    /// Returns the status of the HTTP+JSON binding.
    fn http_status(&self) -> u16 {
        match self.kind {
            Kind::TaskNotFound | Kind::MethodNotFound => 404,
            Kind::ContentTypeNotSupported => 415,
            Kind::Refused(code) => code.http_status(),
            _ => 400,
        }
    }

    /// Returns the name of its status in `google.rpc.Code`.
    fn status_name(&self) -> &'static str {
        match self.http_status() {
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "NOT_FOUND",
            409 => "ABORTED",
            429 => "RESOURCE_EXHAUSTED",
            503 => "UNAVAILABLE",
            500.. => "INTERNAL",
            _ => match self.kind {
                Kind::TaskNotCancelable
                | Kind::UnsupportedOperation
                | Kind::PushNotificationNotSupported
                | Kind::VersionNotSupported => "FAILED_PRECONDITION",
                _ => "INVALID_ARGUMENT",
            },
        }
    }

    /// Its reason and the domain that defines it.
    fn reason(&self) -> (String, &'static str) {
        let reason = match self.kind {
            Kind::TaskNotFound => "TASK_NOT_FOUND",
            Kind::TaskNotCancelable => "TASK_NOT_CANCELABLE",
            Kind::PushNotificationNotSupported => "PUSH_NOTIFICATION_NOT_SUPPORTED",
            Kind::UnsupportedOperation => "UNSUPPORTED_OPERATION",
            Kind::ContentTypeNotSupported => "CONTENT_TYPE_NOT_SUPPORTED",
            Kind::VersionNotSupported => "VERSION_NOT_SUPPORTED",
            Kind::Refused(code) => return (code.as_str().to_uppercase(), "abide"),
            Kind::ParseError => return ("PARSE_ERROR".to_owned(), "abide"),
            Kind::InvalidRequest => return ("INVALID_REQUEST".to_owned(), "abide"),
            Kind::MethodNotFound => return ("METHOD_NOT_FOUND".to_owned(), "abide"),
            Kind::InvalidParams => return ("INVALID_PARAMS".to_owned(), "abide"),
        };
        (reason.to_owned(), "a2a-protocol.org")
    }

    fn details(&self) -> JsonValue {
        let (reason, domain) = self.reason();
        json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
            "domain": domain}])
    }

    /// Returns the code of its status in gRPC.
    fn grpc_code(&self) -> u8 {
        match (self.kind, self.status_name()) {
            (Kind::MethodNotFound, _) => 12,
            (_, "NOT_FOUND") => 5,
            (_, "FAILED_PRECONDITION") => 9,
            (_, "UNAUTHENTICATED") => 16,
            (_, "PERMISSION_DENIED") => 7,
            (_, "ABORTED") => 10,
            (_, "RESOURCE_EXHAUSTED") => 8,
            (_, "UNAVAILABLE") => 14,
            (_, "INTERNAL") => 13,
            _ => 3,
        }
    }

    /// Returns the status of a response in gRPC.
    pub(super) fn to_status(&self) -> Status {
        let (reason, domain) = self.reason();
        Status { code: self.grpc_code(), message: self.message.clone(), reason, domain }
    }

    /// Returns the line that ends a stream of lines.
    pub(super) fn to_line(&self) -> JsonValue {
        let Status { code, message, reason, domain } = self.to_status();
        json!({"error": {"code": code, "message": message, "reason": reason, "domain": domain}})
    }

    /// Returns the member `error` of a response in JSON-RPC.
    pub(super) fn to_rpc(&self) -> JsonValue {
        json!({"code": self.rpc_code(), "message": self.message, "data": self.details()})
    }

    /// Returns the body of a response in HTTP+JSON.
    pub(super) fn to_http(&self) -> JsonValue {
        json!({"error": {"code": self.http_status(), "status": self.status_name(),
            "message": self.message, "details": self.details()}})
    }

    /// Returns the response in HTTP+JSON.
    pub(super) fn into_response(self) -> Response {
        let body = self.to_http();
        self.into_response_with(&body)
    }

    /// Returns the response with another body.
    pub(super) fn into_response_with(self, body: &JsonValue) -> Response {
        let status = StatusCode::from_u16(self.http_status());
        let body = json_response(body.to_string());
        let mut response =
            (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body).into_response();
        if let Some(ms) = self.retry_after_ms {
            let seconds = HeaderValue::from(ms.div_ceil(1_000).max(1));
            response.headers_mut().insert(axum::http::header::RETRY_AFTER, seconds);
        }
        response
    }
}
