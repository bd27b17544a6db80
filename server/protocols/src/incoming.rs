//! The parts of a request with a body.

use abide_server::port::{AuthSession, ConnectionPermit, RequestBody};
use axum::RequestPartsExt as _;
use axum::extract::{Extension, FromRequest, Request};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};

use crate::state::ProtocolState;

/// A request with a body, whose response may be a stream.
pub(super) struct Incoming {
    pub(super) app: ProtocolState,
    pub(super) session: AuthSession,
    /// The connection, which the stream keeps.
    pub(super) place: ConnectionPermit,
    pub(super) headers: HeaderMap,
    pub(super) content: RequestBody,
}

impl FromRequest<ProtocolState> for Incoming {
    type Rejection = Response;

    async fn from_request(request: Request, app: &ProtocolState) -> Result<Incoming, Response> {
        let (mut parts, body) = request.into_parts();
        let session = parts.extract::<Extension<AuthSession>>().await;
        let Extension(session) = session.map_err(|missing| missing.into_response())?;
        let place = parts.extract::<Extension<ConnectionPermit>>().await;
        let Extension(place) = place.map_err(|missing| missing.into_response())?;
        let headers = parts.headers.clone();
        let content = RequestBody::from_request(Request::from_parts(parts, body), app).await;
        let content = content.map_err(|why| why.into_response())?;
        Ok(Incoming { app: app.clone(), session, place, headers, content })
    }
}
