//! The client of HTTP that this crate and its users build on.

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder};

/// Returns the builder of a client that follows no redirects, which would send its headers to another place. Clients are
/// built with this function, because without a provider of cryptography the first one cannot be built.
pub fn http_client() -> ClientBuilder {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(Policy::none())
        .user_agent(concat!("abide/", env!("CARGO_PKG_VERSION")))
}
