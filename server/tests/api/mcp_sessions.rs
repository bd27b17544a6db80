//! Sessions of MCP clients of 2025-11-25 after a restart of the server.

use serde_json::json;

use crate::mcp::{call, initialize, legacy, with_clerk};
use crate::test_server::TestServer;
use crate::tokens::{TokenServer, token};

/// After a restart of the server every call of an official client failed for good: the session was unknown, and these clients do
/// not start another one. The class is an id that a client keeps for longer than the process that has made it. The same
/// subject with another role or scope, or of another issuer (another id), cannot use it, before and after a restart.
#[tokio::test]
async fn a_session_survives_a_restart_and_belongs_to_its_caller() {
    let identities = [
        ("annannann", json!({"role": "app", "scope": {"tenant": "acme"}})),
        ("annannann", json!({"role": "worker", "scope": {"tenant": "acme"}})),
        ("annannann", json!({"role": "app", "scope": {"tenant": "zeta"}})),
        ("annannann", json!({"role": "app"})),
        ("zoezoezoe", json!({"role": "app", "scope": {"tenant": "acme"}})),
    ];
    let first = TokenServer(with_clerk().await);
    first.with(identities[0].0, identities[0].1.clone()).await;
    let bearer = token(identities[0].0);
    let session = initialize(&first.0, Some(&bearer)).await;
    let ping = async |server: &TestServer, bearer: &str, session: &str| {
        let ping = call("ping", json!({}));
        legacy(server, Some(bearer), Some(session), &ping).send().await.status
    };
    assert_eq!(ping(&first.0, &bearer, &session).await, 200);
    first.with("bobbobbob", json!({"scope": {"tenant": "acme"}})).await;
    assert_eq!(ping(&first.0, &token("bobbobbob"), &session).await, 404);
    for (n, (id, identity)) in identities.into_iter().enumerate() {
        let restarted = TokenServer(with_clerk().await);
        restarted.with(id, identity.clone()).await;
        let expected = if n == 0 { 200 } else { 404 };
        let bearer = token(id);
        assert_eq!(ping(&restarted.0, &bearer, &session).await, expected, "{id} {identity}");
        let changed =
            session.replacen(&session[..1], if session.starts_with('0') { "1" } else { "0" }, 1);
        assert_eq!(ping(&restarted.0, &bearer, &changed).await, 404);
        if n == 0 {
            let request = restarted.0.request("DELETE", "/mcp");
            let request = request.header("authorization", &format!("Bearer {bearer}"));
            assert_eq!(request.header("mcp-session-id", &session).send().await.status, 204);
            assert_eq!(ping(&restarted.0, &bearer, &session).await, 404, "it was ended");
        }
    }
}
