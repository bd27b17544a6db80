//! Who has access to a server: callers on the same machine, the bearer of the server's own token, the tokens of an
//! issuer, and the bearer of the secret of a Unix socket.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use abide_schema::reducer::Caller;
use abide_schema::{Code, Refusal};
use subtle::ConstantTimeEq as _;

use crate::auth::jwt::Jwt;

/// Who has access.
#[derive(Clone)]
pub struct AccessConfig {
    token: Option<Arc<str>>,
    jwt: Option<Jwt>,
    /// Certificates of clients are credentials.
    has_client_certificates: bool,
    /// The secret of a Unix socket. Its bearer is the local admin.
    socket_secret: Option<Arc<str>>,
}

impl std::fmt::Debug for AccessConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AccessConfig").field(&self.credentials()).finish()
    }
}

impl AccessConfig {
    /// Returns the kinds of credentials besides those in the file, for the log: `token, jwt`.
    pub(crate) fn credentials(&self) -> String {
        let token = match (&self.socket_secret, &self.token) {
            (Some(_), _) => "socket",
            (None, Some(_)) => "token",
            (None, None) => "loopback",
        };
        let jwt = self.jwt.as_ref().map(|_| "jwt");
        let certificates = self.has_client_certificates.then_some("client_certificates");
        let kinds: Vec<&str> = [Some(token), jwt, certificates].into_iter().flatten().collect();
        kinds.join(", ")
    }

    /// Accepts only credentials in the file: while there are none, every caller on this machine has access, with
    /// the id `local`.
    #[must_use]
    pub fn loopback() -> AccessConfig {
        AccessConfig { token: None, jwt: None, has_client_certificates: false, socket_secret: None }
    }

    /// Additionally accepts this token: its bearer is an admin with the id `token`.
    ///
    /// # Errors
    /// `bad_arguments` if the token cannot be sent in a header: it is empty, or contains a space or
    /// anything outside visible ASCII.
    pub fn bearer(token: impl Into<String>) -> Result<AccessConfig, Refusal> {
        let token = token.into();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let detail = "the token is empty or has characters that are not allowed in a header";
            return Err(Refusal::new(Code::BadArguments, detail).hint(
                "use visible ASCII without spaces, such as the output of `openssl rand -base64 24`",
            ));
        }
        Ok(AccessConfig { token: Some(token.into()), ..AccessConfig::loopback() })
    }

    /// Access to a Unix socket that only the user of this process can connect to. The bearer of the secret, which the lock
    /// file of the database contains, is the local admin: it could open the file as well. The user alone is not enough,
    /// because a program in a sandbox has the same one. Other credentials still count.
    ///
    /// # Errors
    /// As [`AccessConfig::bearer`].
    pub(crate) fn for_socket(secret: &str) -> Result<AccessConfig, Refusal> {
        let AccessConfig { token, .. } = AccessConfig::bearer(secret)?;
        Ok(AccessConfig { socket_secret: token, ..AccessConfig::loopback() })
    }

    /// Returns the access to a socket that accepts the same credentials as a port, in addition to its secret.
    pub(crate) fn with_credentials_of(self, port: &AccessConfig) -> AccessConfig {
        AccessConfig { socket_secret: self.socket_secret, ..port.clone() }
    }

    /// Additionally accepts JSON Web Tokens of an issuer.
    #[must_use]
    pub fn with_jwt(mut self, jwt: Jwt) -> AccessConfig {
        self.jwt = Some(jwt);
        self
    }

    /// Additionally accepts certificates of clients that belong to an identity; see
    /// [`ClientCertificate`](crate::ClientCertificate).
    #[must_use]
    pub fn with_client_certificates(mut self) -> AccessConfig {
        self.has_client_certificates = true;
        self
    }

    /// Returns `true` if a certificate of a client is a credential.
    pub(crate) fn accepts_client_certificates(&self) -> bool {
        self.has_client_certificates
    }

    /// Returns `true` if credentials are required regardless of the file.
    pub(crate) fn requires_credentials(&self) -> bool {
        self.token.is_some()
            || self.jwt.is_some()
            || self.socket_secret.is_some()
            || self.has_client_certificates
    }

    pub(crate) fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }

    /// Returns the caller that the server's own token names.
    pub(crate) fn find_bearer(&self, shown: &str) -> Option<Caller> {
        if is_equal(self.socket_secret.as_deref(), shown) {
            return Some(Caller::local());
        }
        is_equal(self.token.as_deref(), shown).then(|| Caller::new("token"))
    }

    /// Whether a server with this access may listen at an address, for a file without tokens or one that does not
    /// exist yet.
    ///
    /// # Errors
    /// As [`check_listens`](crate::check_listens).
    pub fn check_alone(&self, listens: SocketAddr) -> Result<(), Refusal> {
        AccessConfig::check_listens(listens, self.requires_credentials())
    }

    /// Whether a server may listen at an address; `required` says whether credentials are
    /// required.
    ///
    /// # Errors
    /// `denied` for a non-loopback address while no credentials exist.
    pub(crate) fn check_listens(listens: SocketAddr, required: bool) -> Result<(), Refusal> {
        if required || is_loopback(listens.ip()) {
            return Ok(());
        }
        let detail = format!(
            "cannot listen on {listens}: without a token only loopback addresses are allowed"
        );
        Err(Refusal::new(Code::Denied, detail).hint(
            "create a token with `abide token create root --role admin` or listen on 127.0.0.1",
        ))
    }
}

/// Compares in constant time.
fn is_equal(own: Option<&str>, shown: &str) -> bool {
    own.is_some_and(|own| bool::from(shown.as_bytes().ct_eq(own.as_bytes())))
}

pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_credentials_the_server_listens_only_on_loopback() {
        let check = |address: &str| {
            AccessConfig::check_listens(address.parse().expect("an address"), false)
                .map_err(|why| why.code)
        };
        assert_eq!(check("127.0.0.1:0"), Ok(()));
        assert_eq!(check("[::1]:0"), Ok(()));
        assert_eq!(check("0.0.0.0:0"), Err(Code::Denied));
        assert_eq!(check("[::]:0"), Err(Code::Denied));
        assert_eq!(
            AccessConfig::check_listens("0.0.0.0:0".parse().expect("an address"), true),
            Ok(())
        );
    }
}
