//! Authentication: what a request presents, who it is, and how long that stays valid.

pub(crate) mod access;
pub(crate) mod authenticator;
pub(crate) mod credential_store;
pub(crate) mod jwt;
