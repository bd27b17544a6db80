//! Authentication: the credential of a request, its caller, and how long it is valid.
//!
//! In reading order: `access` from a request to its caller · `access_config` what a server accepts · `authenticator` checks a
//! credential, and checks it again · `credential_store` tokens in the database · `jwt` tokens of an issuer ·
//! `protected_resource` where a client gets one · `refused` counts refused credentials. What a caller may do is decided in the engine (`engine/src/access.rs`).

pub(crate) mod access;
pub(crate) mod access_config;
pub(crate) mod authenticator;
pub(crate) mod credential_store;
pub(crate) mod jwt;
pub(crate) mod protected_resource;
pub(crate) mod refused;

use abide_schema::{Code, Refusal};

/// The refusal of a certificate that a trusted authority has signed and that no identity has.
pub(crate) fn unknown_certificate() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the client certificate belongs to no identity")
        .hint("an admin registers it: `abide token create IDENTITY --certificate FILE`")
}

/// One refusal for every unknown credential, so that attempts reveal nothing.
pub(crate) fn unknown() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the token is unknown")
        .hint("check it for missing characters; an admin can create another: `abide token create`")
}
