//! Identities and tokens created through the SDK: access, scope, limits, revocation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use abide_client::arguments::{
    CallLimits, CreateIdentity, CreateSession, DisableIdentity, EnableIdentity, RateLimit,
    RevokeToken, SetRole,
};
use abide_client::rows::Effect;
use abide_client::{Abide, Code, Error, Scope, Secret};
use abide_server::AccessConfig;
use serde_json::{Value as JsonValue, json};

use crate::world::{Server, World};

fn acme(role: &str) -> CreateIdentity {
    CreateIdentity::new("acme", role).scope([("tenant".to_owned(), "acme".to_owned())])
}

async fn connect(server: &Server, secret: &Secret) -> Result<Abide, Error> {
    Abide::builder(&format!("http://{}", server.address)).token(secret.text()).connect().await
}

#[tokio::test]
async fn a_token_is_valid_until_it_is_revoked() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let admin = Abide::embed(server.engine.clone());
    admin.call(acme("app")).await.expect("it is made");
    let secret = Secret::new().expect("there is randomness");
    let token = admin.call(secret.create_token("acme")).await.expect("it is made");
    let token = &token.value;
    assert_eq!((token.id.as_str(), &token.hash), (secret.id(), &secret.hash()));
    let app = connect(&server, &secret).await.expect("it is let in");
    let session = app.call(CreateSession::new("a")).await.expect("it is made");
    assert_eq!(session.value.scope.as_str(), r#"{"tenant":"acme"}"#);
    let mut sessions = app.subscribe("SELECT id FROM sessions").await.expect("it begins");
    assert_eq!(
        sessions.try_next().await.expect("it is live").expect("the session").insert_rows().len(),
        1
    );

    admin.call(DisableIdentity::new("acme").reason("a holiday")).await.expect("it is disabled");
    let ended = loop {
        if let Err(error) = sessions.try_next().await {
            break error;
        }
    };
    assert_eq!(ended.code(), Some(Code::Unauthenticated));
    assert!(sessions.next().await.is_none());
    let refused = app.call(CreateSession::new("a")).await.expect_err("it is disabled");
    assert_eq!(refused.code(), Some(Code::Unauthenticated));
    admin.call(EnableIdentity::new("acme")).await.expect("it is enabled");
    let app = connect(&server, &secret).await.expect("it is let in again");
    admin.call(RevokeToken::new(secret.id())).await.expect("it is revoked");
    let refused = app.call(CreateSession::new("a")).await.expect_err("it is revoked");
    assert_eq!(refused.code(), Some(Code::Unauthenticated));
    let refused = connect(&server, &secret).await.expect_err("it is revoked");
    assert!(refused.to_string().contains("was revoked at"), "{refused}");
    server.stop().await;
}

/// When its own rate limit refuses a call, the client waits as long as the server says, then retries.
#[tokio::test]
async fn a_client_waits_for_its_rate_limit() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let admin = Abide::embed(server.engine.clone());
    let limits = CallLimits {
        rate: Some(RateLimit { calls: 2, per_ms: 200 }),
        quota: Some(RateLimit { calls: 8, per_ms: 86_400_000 }),
    };
    let role = SetRole::new("slow", ["create_session".to_owned()]).limits(limits);
    admin.call(role).await.expect("it is made");
    admin.call(acme("slow")).await.expect("it is made");
    let secret = Secret::new().expect("there is randomness");
    admin.call(secret.create_token("acme").expires_in_ms(60_000)).await.expect("it is made");
    let app = connect(&server, &secret).await.expect("it is let in");
    let begun = Instant::now();
    for _ in 0..8 {
        app.call(CreateSession::new("a")).await.expect("it waits its turn");
    }
    assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    let used_up = app.call(CreateSession::new("a")).await.expect_err("its quota is used up");
    assert_eq!(used_up.code(), Some(Code::RateLimited));
    assert!(used_up.retry_after().is_some_and(|wait| wait <= Duration::from_secs(86_400)));
    server.stop().await;
}

/// A driver restricts a remote handle to the scope that it acts for, and the log records that scope.
#[tokio::test]
async fn a_remote_handle_acts_for_a_scope() {
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let admin = Abide::connect(&format!("http://{}", server.address)).await.expect("it connects");
    let scope = |tenant: &str| Scope::from([("tenant".to_owned(), tenant.to_owned())]);
    let acme = admin.acting_for(&scope("acme")).await.expect("it connects");
    let odd = admin
        .acting_for(&scope("z\u{e9} \"\\\u{1f600}"))
        .await
        .expect("any visible text is a scope");
    let session = acme.call(CreateSession::new("a")).await.expect("it is made");
    assert_eq!(session.value.scope.as_str(), r#"{"tenant":"acme"}"#);
    let made = odd.call(CreateSession::new("a")).await.expect("it is made");
    let kept: Scope = serde_json::from_str(made.value.scope.as_str()).expect("it is a scope");
    assert_eq!(kept, scope("z\u{e9} \"\\\u{1f600}"));
    let seen: Vec<(String,)> = acme.sql("SELECT id FROM sessions").fetch().await.expect("rows");
    assert_eq!(seen, [(session.value.id.clone(),)]);
    let authority = "SELECT authority FROM events WHERE authority LIKE '%acme%'";
    let logged: Vec<(String,)> = admin.sql(authority).fetch().await.expect("rows");
    assert_eq!(logged.len(), 1);
    let refused = acme.acting_for(&scope("zeta")).await.expect_err("it is another tenant's");
    assert_eq!(refused.code(), Some(Code::Denied));
    admin.close().await;
    assert!(!acme.connected(), "a derived handle is closed with its parent");
    server.stop().await;
}

/// Each program of a tenant finds its sessions, and the steps of those. The second program queried the id that it had
/// chosen, or the id of a call as the SDK derives it: it found nothing and waited for ever.
#[tokio::test]
async fn the_steps_of_a_tenant_are_found_again() {
    let scope = |tenant: &str| Scope::from([("tenant".to_owned(), tenant.to_owned())]);
    let world = World::new();
    let server = world.serve(None, AccessConfig::loopback()).await;
    let remote = Abide::connect(&format!("http://{}", server.address)).await.expect("it connects");
    let embedded = Abide::embed(server.engine.clone());
    assert_eq!(embedded.namespace().as_deref(), Some(""));
    for (nth, abide) in [embedded.clone(), remote].into_iter().enumerate() {
        let tenant = format!("acme {nth}");
        let namespace = format!("tenant=acme%20{nth}/");
        let acme = abide.acting_for(&scope(&tenant)).await.expect("it is permitted");
        let tool = abide_client::arguments::RegisterTool::new("pay").effect(Effect::AtMostOnce);
        abide.call(tool).await.expect("it is registered");
        assert!(acme.find_session("main").await.expect("a query").is_none());
        assert_eq!(acme.namespace().as_deref(), Some(namespace.as_str()));
        let chosen = acme.session("a").id("main").await.expect("it is made");
        assert_eq!(chosen.id(), format!("{namespace}main"));
        let generated = acme.session("a").await.expect("it is made");
        assert!(generated.id().starts_with("s_"), "{}", generated.id());
        let runs = AtomicUsize::new(0);
        for (given, stored) in [("main", chosen.id()), (chosen.id(), chosen.id())]
            .into_iter()
            .chain([(generated.id(), generated.id()); 2])
        {
            let session = acme.session("b").id(given).await.expect("it is found");
            assert_eq!(session.id(), stored);
            let found = acme.find_session(given).await.expect("a query").expect("it exists");
            assert_eq!(found.id(), stored);
            found.message("user", "Please pay.").key("question").await.expect("it is kept");
            let step = found.tool("pay", json!({}), "pay").run(|_: JsonValue| async {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok("paid".to_owned())
            });
            assert_eq!(step.await.expect("it has a result"), "paid");
            // tidy: the step itself, which waits for a timer that is due
            found.sleep_until(SystemTime::now(), "sleep").await.expect("it fires");
        }
        assert_eq!(runs.into_inner(), 2, "once for each session");
        let other = abide.acting_for(&scope("other")).await.expect("it is permitted");
        for id in ["main", chosen.id(), generated.id()] {
            assert!(other.find_session(id).await.expect("a query").is_none(), "{id}");
        }
        let messages: Vec<i64> =
            abide.sql("SELECT count(*) FROM agent_state").fetch().await.expect("a query");
        assert_eq!(messages, [2 * (nth as i64 + 1)], "a keyed message is appended once");
    }
    server.stop().await;
}
