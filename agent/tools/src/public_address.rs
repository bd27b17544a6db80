//! Which addresses web tools and the client of A2A may connect to: those of the public internet. A page or a card could
//! otherwise make the server send requests to its own machine or network.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use futures_util::FutureExt as _;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};

use crate::error_text::causes;
use crate::http_client::http_client;

/// Hosts that are permitted although their addresses are not public: `host` or `host:port`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PermittedHosts(BTreeSet<String>);

impl PermittedHosts {
    pub(crate) fn new(hosts: impl IntoIterator<Item = String>) -> PermittedHosts {
        PermittedHosts(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect())
    }

    /// Returns a client that connects to public addresses and permitted hosts. It follows no redirects. The caller
    /// checks each URL ([`PermittedHosts::check`]), because a literal address is not resolved.
    pub(crate) fn client(&self) -> ClientBuilder {
        // A proxy would resolve names itself.
        http_client().no_proxy().dns_resolver(self.clone())
    }

    /// Adds the host of a configured address.
    pub(crate) fn permit(&mut self, url: &Url) {
        if let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) {
            self.0.insert(format!("{host}:{port}"));
        }
    }

    /// Returns `true` if a host is permitted.
    pub(crate) fn has(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        self.0.contains(host) || self.0.contains(&format!("{host}:{port}"))
    }

    /// Returns `true` if a host is permitted with at least one port.
    fn has_name(&self, name: &str) -> bool {
        self.0.iter().any(|host| host.split(':').next() == Some(name))
    }

    /// Checks the parts of a URL that need no resolution of names.
    pub(crate) fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{}: only http and https can be used", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a URL with a user name is not used".to_owned());
        }
        let host = url.host_str().ok_or("the URL has no host")?;
        if self.has(url) {
            return Ok(());
        }
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal {
            Ok(address) if !is_public(address) => Err(refusal(host)),
            Ok(_) => Ok(()),
            // The name may be permitted with another port only.
            Err(_) if self.has_name(host) => Err(refusal(host)),
            Err(_) => Ok(()),
        }
    }
}

/// Why a request failed, with its causes, without the URL, which may contain a key.
pub(crate) fn failure(host: &str, error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("{host} did not respond in time");
    }
    match causes(error).last() {
        Some(refusal) if refusal.is::<NotPublic>() => refusal.to_string(),
        Some(last) => format!("{host}: {last}"),
        None => format!("{host}: unknown error"),
    }
}

/// Why a request to an address that a model or a client has chosen failed: a name that does not exist and one with a private address
/// have one text, so that the names of the server's network cannot be listed.
pub(crate) fn failure_of_chosen(host: &str, error: &reqwest::Error) -> String {
    if causes(error).any(|cause| cause.is::<NotResolved>()) {
        return refusal(host);
    }
    failure(host, error)
}

/// A name that cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotResolved(std::io::Error);

/// A host that must not be used, because it has no public address.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not a public address, and only public addresses can be used")]
struct NotPublic(String);

/// Returns `true` if a request failed because its host has no public address.
pub(crate) fn is_refusal(error: &reqwest::Error) -> bool {
    causes(error).any(|cause| cause.is::<NotPublic>())
}

fn refusal(host: &str) -> String {
    NotPublic(host.to_owned()).to_string()
}

/// Resolves names to public addresses. The connection uses exactly the addresses that were checked.
impl Resolve for PermittedHosts {
    fn resolve(&self, name: Name) -> Resolving {
        let is_permitted = self.has_name(name.as_str());
        async move {
            let host = name.as_str().to_owned();
            let found = tokio::net::lookup_host((host.as_str(), 0)).await;
            let found = match found {
                Err(why) if !is_permitted => return Err(NotResolved(why).into()),
                found => found?,
            };
            let all: Vec<SocketAddr> = found.collect();
            let usable: Vec<SocketAddr> =
                all.into_iter().filter(|at| is_permitted || is_public(at.ip())).collect();
            if usable.is_empty() {
                return Err(NotPublic(host).into());
            }
            let addresses: Addrs = Box::new(usable.into_iter());
            Ok(addresses)
        }
        .boxed()
    }
}

/// Returns `true` if an address is reachable from everywhere (the registries of special addresses of IANA).
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        // Shared by carriers.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        // 6to4 relays.
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b))
        // Multicast, reserved and broadcast.
        || a >= 224;
    !is_special
}

/// Returns `true` if the IPv4 address within an IPv6 address is public.
fn is_public_embedded(high: u16, low: u16) -> bool {
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    is_public_v4(Ipv4Addr::new(a, b, c, d))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    match parts {
        // ::ffff:a.b.c.d
        [0, 0, 0, 0, 0, 0xFFFF, high, low] => is_public_embedded(high, low),
        // NAT64
        [0x64, 0xFF9B, 0, 0, 0, 0, high, low] => is_public_embedded(high, low),
        // 6to4
        [0x2002, high, low, ..] => is_public_embedded(high, low),
        // Teredo, benchmarks, ORCHID, documentation
        [0x2001, 0 | 2 | 0xDB8, ..] => false,
        [0x2001, second, ..] if (0x10..0x40).contains(&second) => false,
        [0x3FFF, second, ..] if second < 0x1000 => false,
        // Only 2000::/3 is assigned.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001::1",
            "100::1",
            "3fff::1",
        ] {
            let parsed = address.parse().expect("it is an address");
            assert!(!is_public(parsed), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"]
        {
            let parsed = address.parse().expect("it is an address");
            assert!(is_public(parsed), "{address}");
        }
    }

    /// Resolves no name, with the text of a refusal.
    struct Imitation;

    impl Resolve for Imitation {
        fn resolve(&self, name: Name) -> Resolving {
            let error: Box<dyn std::error::Error + Send + Sync> = refusal(name.as_str()).into();
            async move { Err::<Addrs, _>(error) }.boxed()
        }
    }

    /// Regression: each error whose text was that of a refusal counted as one.
    #[tokio::test]
    async fn a_refusal_is_recognised_by_its_type() {
        let imitation = http_client().no_proxy().dns_resolver(Imitation).build();
        let own = PermittedHosts::default().client().build();
        for (client, expected) in [(own, true), (imitation, false)] {
            let client = client.expect("it can be built");
            let sent = client.get("http://localhost:9/").send().await;
            assert_eq!(is_refusal(&sent.expect_err("there is no address")), expected);
        }
    }

    #[test]
    fn urls_are_checked_in_every_spelling() {
        let hosts = PermittedHosts::new(["127.0.0.1:9".to_owned(), "wiki.local:80".to_owned()]);
        for (text, is_permitted) in [
            ("http://127.0.0.1:9/x", true),
            ("http://127.0.0.1:10/", false),
            ("http://127.1:10/", false),
            ("http://2130706433/", false),
            ("http://0x7f.0.0.1/", false),
            ("http://017700000001/", false),
            ("http://[::1]/", false),
            ("http://[::ffff:7f00:1]/", false),
            ("http://wiki.local/", true),
            ("http://wiki.local:22/", false),
            ("http://user@example.com/", false),
            ("ftp://example.com/", false),
            ("file:///etc/passwd", false),
            ("https://example.com/", true),
        ] {
            let url = Url::parse(text).expect("it is a URL");
            assert_eq!(hosts.check(&url).is_ok(), is_permitted, "{text}");
        }
    }
}
