//! Authentication: the credential of a request, its caller, and how long it is valid.

pub(crate) mod access;
pub(crate) mod authenticator;
pub(crate) mod credential_store;
pub(crate) mod jwt;
