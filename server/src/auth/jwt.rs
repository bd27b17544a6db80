//! Callers authenticated by an issuer: JSON Web Tokens (RFC 7519) whose keys are in a
//! file, and the mapping of their claims.
//!
//! A key is valid for one algorithm, determined by its type; a token's header can only agree. So
//! `none` is not an algorithm, and a public key cannot be used as a shared secret.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use abide_engine::credentials::expired;
use abide_schema::caller::{Caller, Scope};
use abide_schema::id::forbidden_character;
use abide_schema::{Code, Micros, Refusal, limits as bounds, lowercase_first};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::{Map, Value as JsonValue};

use crate::auth::unknown;
use crate::{limits, regular_file};

/// The configuration file: trusted keys, and the mapping of claims.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The path of the issuer's keys, a JWKS (RFC 7517); relative to this file.
    jwks: PathBuf,
    /// Required value of `iss`.
    issuer: String,
    /// Required value of `aud`, or one of its values.
    audience: String,
    /// Allowed clock difference.
    #[serde(default = "default_leeway_s")]
    leeway_s: u32,
    /// The role of callers whose token has none.
    role: Option<String>,
    #[serde(default)]
    claims: Claims,
}

/// The names of the claims.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Claims {
    /// The identity's id.
    id: String,
    role: Option<String>,
    /// An array of texts, or a space-separated text.
    capabilities: Option<String>,
    /// By scope key. A token without one of them is refused.
    scope: BTreeMap<String, String>,
}

impl Default for Claims {
    fn default() -> Claims {
        Claims { id: "sub".to_owned(), role: None, capabilities: None, scope: BTreeMap::new() }
    }
}

fn default_leeway_s() -> u32 {
    30
}

/// A key, and the one algorithm that it is valid for.
#[derive(Clone)]
struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// An object, such as the claims of a token. A duplicate member is an error: parsers differ in which of the two
/// they use (RFC 7519, section 4).
pub(crate) struct UniqueObject(pub(crate) Map<String, JsonValue>);

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<UniqueObject, D::Error> {
        struct Claims;
        impl<'de> Visitor<'de> for Claims {
            type Value = UniqueObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueObject, A::Error> {
                let mut claims = Map::new();
                while let Some((name, value)) = map.next_entry::<String, JsonValue>()? {
                    if claims.insert(name, value).is_some() {
                        return Err(serde::de::Error::custom("duplicate member"));
                    }
                }
                Ok(UniqueObject(claims))
            }
        }
        from.deserialize_map(Claims)
    }
}

/// The caller named by a token.
#[derive(Debug)]
pub(crate) struct VerifiedClaims {
    pub(crate) caller: Caller,
    pub(crate) expires_at: Micros,
}

/// The issuer's keys as last read.
struct KeySet {
    keys: Arc<[Key]>,
    /// The file's modification time.
    changed_at: Option<SystemTime>,
    looked_at: Micros,
}

/// Authenticates callers by JSON Web Token. See the module.
#[derive(Clone)]
pub struct Jwt {
    keys: Arc<Mutex<KeySet>>,
    config: Arc<Config>,
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jwt({}, {} keys)", self.config.issuer, self.lock().keys.len())
    }
}

impl Jwt {
    /// Returns the name of the issuer, usually its URL.
    pub(crate) fn issuer(&self) -> &str {
        &self.config.issuer
    }

    /// Opens a configuration file: a JSON object with `jwks` (the path of the keys), `issuer`, `audience`, and
    /// optionally `leeway_s`, `role` and `claims` (`id`, `role`, `capabilities`, `scope`: the names of the claims).
    ///
    /// # Errors
    /// `bad_arguments` if the file, or that of the keys, is unreadable or invalid.
    pub fn open(path: &Path) -> Result<Jwt, Refusal> {
        let mut config: Config = read_json(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        config.jwks = folder.join(&config.jwks);
        if config.issuer.contains('#') || forbidden_character(&config.issuer).is_some() {
            let detail =
                format!("{}: the issuer has a # or an invisible character", path.display());
            return Err(Refusal::new(Code::BadArguments, detail)
                .hint("an issuer is a URL without a fragment (OpenID Connect Core, section 2)"));
        }
        // Before it is read, so that a concurrent change is noticed at the next check.
        let changed_at = modified_at(&config.jwks);
        let keys = KeySet { keys: read_keys(&config.jwks)?, changed_at, looked_at: Micros(0) };
        Ok(Jwt { keys: Arc::new(Mutex::new(keys)), config: Arc::new(config) })
    }

    /// Returns the caller named by a token, if the token is the issuer's and currently valid.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub(crate) fn verify(&self, token: &str, now: Micros) -> Result<VerifiedClaims, Refusal> {
        if token.len() > limits::JWT_BYTES {
            let bytes = token.len();
            let max = limits::JWT_BYTES;
            return Err(unauthenticated(format!(
                "the token has {bytes} bytes; the limit is {max}"
            )));
        }
        let header = decode_header(token).map_err(|_| unknown())?;
        let key = self.find_key(header.kid.as_deref(), now)?;
        if header.alg != key.algorithm {
            return Err(unauthenticated(
                "the token is signed with an algorithm that does not match its key",
            ));
        }
        let Config { issuer, audience, leeway_s, .. } = &*self.config;
        let mut validation = Validation::new(key.algorithm);
        validation.set_issuer(&[issuer]);
        validation.set_audience(&[audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Times are checked against the engine's clock, below.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        let decoded = decode::<UniqueObject>(token, &key.key, &validation);
        let UniqueObject(claims) = decoded.map_err(|why| explain_failure(&why))?.claims;
        // The library also accepts an array that contains the issuer (RFC 7519 specifies a text).
        if claims.get("iss").and_then(JsonValue::as_str) != Some(issuer) {
            return Err(unauthenticated("the token is from another issuer"));
        }
        let expires_at = time_claim(&claims, "exp", *leeway_s)?.ok_or_else(unknown)?;
        if expires_at <= now {
            return Err(expired("the token", expires_at));
        }
        let not_before = time_claim(&claims, "nbf", 0)?;
        let leeway_us = i64::from(*leeway_s) * 1_000_000;
        if let Some(from) = not_before.filter(|from| from.0 > now.0.saturating_add(leeway_us)) {
            return Err(unauthenticated(format!("the token is not valid before {from}")));
        }
        Ok(VerifiedClaims { caller: self.read_caller(&claims)?, expires_at })
    }

    /// Returns the key that a token names, or the only one if it names none.
    fn find_key(&self, id: Option<&str>, now: Micros) -> Result<Key, Refusal> {
        if let Some(key) = select_key(&self.current_keys(now, limits::KEY_FILE_CHECK_US), id) {
            return Ok(key);
        }
        // The issuer may have added the key since the file was read.
        select_key(&self.current_keys(now, limits::UNKNOWN_KEY_CHECK_US), id)
            .ok_or_else(|| unauthenticated("the token names an unknown key"))
    }

    /// Returns the issuer's keys. Checks the file if the last check was longer ago, and reads it if it has changed. If
    /// that fails, the keys stay unchanged.
    fn current_keys(&self, now: Micros, every_us: i64) -> Arc<[Key]> {
        let mut known = self.lock();
        // A clock set back must not postpone it.
        if now.0.saturating_sub(known.looked_at.0).unsigned_abs() < every_us.unsigned_abs() {
            return Arc::clone(&known.keys);
        }
        known.looked_at = now;
        let path = &self.config.jwks;
        let changed_at = modified_at(path);
        if changed_at != known.changed_at {
            match read_keys(path) {
                Ok(keys) => {
                    tracing::info!(
                        name: "issuer_keys_read",
                        keys = keys.len(),
                        "the issuer's keys were read again"
                    );
                    (known.keys, known.changed_at) = (keys, changed_at);
                }
                Err(why) => {
                    tracing::warn!(
                        name: "issuer_keys_unreadable",
                        %why,
                        "cannot read the issuer's keys; keeping the old ones"
                    )
                }
            }
        }
        Arc::clone(&known.keys)
    }

    fn lock(&self) -> MutexGuard<'_, KeySet> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_caller(&self, claims: &Map<String, JsonValue>) -> Result<Caller, Refusal> {
        let Claims { id, role, capabilities, scope } = &self.config.claims;
        // In a form that no identity of the database has: the issuer's `ann` is not the local one. The issuer contains
        // no `#`, so that no two pairs of issuer and subject give the same id.
        let id = format!("{}{}#{}", Caller::ISSUED, self.config.issuer, text_claim(claims, id)?);
        if id.len() > bounds::NAME_BYTES {
            let max = bounds::NAME_BYTES;
            return Err(unauthenticated(format!("issuer and subject have more than {max} bytes")));
        }
        let role_claim = role.as_ref().filter(|claim| claims.contains_key(*claim));
        let role = match (role_claim, &self.config.role) {
            (Some(claim), _) => text_claim(claims, claim)?,
            (None, Some(role)) => role.clone(),
            (None, None) => return Err(unauthenticated("the token names no role")),
        };
        let capabilities = match capabilities.as_ref().and_then(|claim| claims.get(claim)) {
            None => BTreeSet::new(),
            Some(JsonValue::String(several)) => {
                several.split_whitespace().map(str::to_owned).collect()
            }
            Some(several) => serde_json::from_value(several.clone())
                .map_err(|_| unauthenticated("the capabilities of the token must be strings"))?,
        };
        let scope = scope
            .iter()
            .map(|(key, claim)| Ok((key.clone(), text_claim(claims, claim)?)))
            .collect::<Result<Scope, Refusal>>()?;
        Ok(Caller::with(id, role, capabilities, scope))
    }
}

fn select_key(keys: &[Key], id: Option<&str>) -> Option<Key> {
    match (id, keys) {
        (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)).cloned(),
        (None, [only]) => Some(only.clone()),
        (None, _) => None,
    }
}

fn modified_at(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Returns the usable keys of a file.
fn read_keys(path: &Path) -> Result<Arc<[Key]>, Refusal> {
    let set: JwkSet = read_json(path)?;
    let keys: Vec<Key> = set.keys.iter().filter_map(usable_key).collect();
    if keys.is_empty() {
        let detail = format!("{} has no key for HS256, EdDSA or RS256", path.display());
        return Err(Refusal::new(Code::BadArguments, detail).hint(
            "kty oct of 32 bytes or more, OKP with crv Ed25519, or RSA of 2048 bits or more",
        ));
    }
    Ok(keys.into())
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, Refusal> {
    let text = regular_file::open(path).and_then(io::read_to_string);
    let text = text.map_err(|why| unusable_file(path, &why))?;
    serde_json::from_str(&text).map_err(|why| unusable_file(path, &why))
}

fn unusable_file(path: &Path, why: &impl fmt::Display) -> Refusal {
    let why = lowercase_first(&why.to_string());
    Refusal::new(Code::BadArguments, format!("{}: {why}", path.display()))
        .hint("--jwt names a JSON file about the issuer; its field `jwks` is the path of the keys")
}

/// Returns a usable key. A key marked for another use is ignored.
fn usable_key(jwk: &jsonwebtoken::jwk::Jwk) -> Option<Key> {
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::OctetKey(_) => (Algorithm::HS256, KeyAlgorithm::HS256),
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    let agrees = jwk.common.key_algorithm.is_none_or(|given| given == named);
    let key = DecodingKey::from_jwk(jwk).ok().filter(|key| agrees && is_strong(key))?;
    Some(Key { id: jwk.common.key_id.clone(), algorithm, key })
}

/// Rejects secrets that can be guessed, and moduli that can be factored.
fn is_strong(key: &DecodingKey) -> bool {
    use jsonwebtoken::DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
    match key.kind() {
        SecretOrDer(bytes) => bytes.len() >= 32,
        RsaModulusExponent { n, .. } => n.iter().skip_while(|byte| **byte == 0).count() >= 256,
    }
}

fn text_claim(claims: &Map<String, JsonValue>, name: &str) -> Result<String, Refusal> {
    match claims.get(name) {
        Some(JsonValue::String(text)) if forbidden_character(text).is_some() => {
            Err(unauthenticated(format!("the token's claim {name} has an invisible character")))
        }
        Some(JsonValue::String(text)) if (1..=bounds::NAME_BYTES).contains(&text.len()) => {
            Ok(text.clone())
        }
        Some(JsonValue::String(text)) => {
            let bytes = text.len();
            let max = bounds::NAME_BYTES;
            Err(unauthenticated(format!("claim {name} has {bytes} bytes; it must have 1 to {max}")))
        }
        _ => Err(unauthenticated(format!("claim {name} is missing or not a string"))),
    }
}

/// Returns a claim's time, in whole or fractional seconds since 1970 (RFC 7519, section 2), with the leeway.
fn time_claim(
    claims: &Map<String, JsonValue>,
    name: &str,
    leeway_s: u32,
) -> Result<Option<Micros>, Refusal> {
    let Some(claim) = claims.get(name) else { return Ok(None) };
    let seconds =
        claim.as_f64().filter(|seconds| (0.0..1e11).contains(seconds)).ok_or_else(|| {
            unauthenticated(format!("claim {name} must be a number of seconds since 1970"))
        })?;
    Ok(Some(Micros((seconds * 1e6) as i64 + i64::from(leeway_s) * 1_000_000)))
}

fn explain_failure(why: &jsonwebtoken::errors::Error) -> Refusal {
    use jsonwebtoken::errors::ErrorKind;
    match why.kind() {
        ErrorKind::InvalidIssuer => unauthenticated("the token is from another issuer"),
        ErrorKind::InvalidAudience => unauthenticated("the token is for another audience"),
        ErrorKind::Json(_) => {
            unauthenticated("the claims are not a JSON object, or contain a duplicate claim")
        }
        ErrorKind::MissingRequiredClaim(claim) => {
            unauthenticated(format!("the token has no {claim}"))
        }
        _ => unknown(),
    }
}

fn unauthenticated(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::Unauthenticated, detail).hint("get a new token from the issuer")
}
