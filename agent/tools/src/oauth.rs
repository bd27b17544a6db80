//! OAuth 2.1 for MCP servers: how a server's metadata is discovered (RFC 9728, RFC 8414), how tokens are requested, stored and
//! renewed, and how a person logs in. The client of a server uses it ([`Authorizer`]), and so does the command that logs in
//! ([`McpLogin`]).
//!
//! A server can name any authorization server, so nothing that its metadata says is trusted: addresses must be public, issuers and
//! resources must match, a secret of a client goes to its configured issuer only, and a token to the server that it was issued for.
//! No token, code or secret is part of an error or of the log.

mod assertion;
mod authorizer;
mod challenge;
mod client;
mod config;
mod discovery;
mod error;
mod http;
mod login;
mod random;
mod store;
mod token;

pub(crate) use authorizer::Authorizer;
pub(crate) use challenge::Challenge;
pub use config::{OAuthConfig, TokenEndpointAuth};
pub use error::OAuthError;
pub use login::McpLogin;
pub use store::forget_mcp_login;
