//! `browser`, `search` and `inspect_package` with servers on loopback and recorded answers.

use std::net::SocketAddr;

use abide_tools::{
    BuiltinToolsConfig, Environment, Failure, Invocation, ToolContext, ToolOutcome, Tools,
    add_builtin_tools,
};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use expect_test::expect;
use serde_json::{Value, json};

use crate::SECRET;

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn tools(config: Value) -> Tools {
    let config: BuiltinToolsConfig = serde_json::from_value(config).expect("it is valid");
    let keys = [("SEARCH_KEY".to_owned(), "key-1".to_owned())];
    let environment: Environment = keys.into_iter().collect();
    let tools = Tools::new();
    add_builtin_tools(&tools, &config, None, &environment).expect("they are added");
    tools
}

async fn call(tools: &Tools, name: &str, arguments: Value) -> ToolOutcome {
    let tool = tools.get(name).expect("it is configured");
    tool.run(Invocation::new("call-1", arguments, ToolContext::default())).await
}

fn pages(internal: SocketAddr) -> Router {
    let inside = format!("http://{internal}/secret");
    Router::new()
        .route(
            "/page",
            get(|| async {
                Html("<title>A page</title><h1>Head</h1><p>Text &amp; more <a href='next'>next</a>")
            }),
        )
        .route("/moved", get(|| async { Redirect::to("/page") }))
        .route("/inside", get(move || async move { Redirect::to(&inside) }))
        .route("/file", get(|| async { Redirect::to("file:///etc/passwd") }))
        .route("/name", get(|| async { Redirect::to("http://localhost:1/") }))
        .route("/loop", get(|| async { Redirect::to("/loop") }))
        .route("/plain", get(|| async { "plain <b>text</b>" }))
        .route("/long", get(|| async { "ä".repeat(50_000) }))
        .route("/image", get(|| async { ([(header::CONTENT_TYPE, "image/png")], "x") }))
        .route("/huge", get(|| async { Body::from_stream(huge()) }))
        .route("/gone", get(|| async { (StatusCode::GONE, "it is gone") }))
        .route("/never", get(|| async { std::future::pending::<Response>().await }))
        .route(
            "/latin",
            get(|| async {
                ([(header::CONTENT_TYPE, "text/plain; charset=iso-8859-1")], &b"\xe4"[..])
            }),
        )
}

fn huge() -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> {
    futures_util::stream::repeat_with(|| Ok(Bytes::from_static(&[b'x'; 65_536])))
}

#[tokio::test]
async fn pages_become_text_and_links() {
    let internal = serve(Router::new()).await;
    let address = serve(pages(internal)).await;
    let tools = tools(json!({"browser": {"allow_private": [address.to_string()],
        "max_bytes": 200_000, "timeout_ms": 2_000}}));
    let mut lines = Vec::new();
    for path in
        ["page", "moved", "plain", "image", "huge", "gone", "never", "loop", "latin", "missing"]
    {
        let url = format!("http://{address}/{path}");
        let outcome = call(&tools, "browser", json!({"url": url})).await;
        let failure = outcome.failure.map_or("ok", Failure::code);
        lines.push(format!(
            "{path} {failure}: {}",
            outcome.text.replace(&address.to_string(), "HOST")
        ));
    }
    expect![[r#"
        page ok: http://HOST/page
        A page

        # Head

        Text & more next

        Links:
        - next: http://HOST/next
        moved ok: http://HOST/page
        A page

        # Head

        Text & more next

        Links:
        - next: http://HOST/next
        plain ok: http://HOST/plain

        plain <b>text</b>
        image tool: browser: http://HOST/image is not text: 1 bytes of image/png
        huge tool: browser: the response of 127.0.0.1 has more than 200000 bytes
        gone tool: browser: http://HOST/gone
        HTTP 410 Gone

        it is gone
        never timed_out: browser timed out after 2 s
        loop tool: browser: more than 5 redirects
        latin ok: http://HOST/latin

        ä
        missing tool: browser: http://HOST/missing
        HTTP 404 Not Found

    "#]]
    .assert_eq(&lines.join("\n"));
    let long = call(&tools, "browser", json!({"url": format!("http://{address}/long")})).await;
    assert!(long.text.ends_with("[characters 0 to 40000 of 50000: continue with from 40000]"));
    let rest = json!({"url": format!("http://{address}/long"), "from": 40_000});
    assert_eq!(call(&tools, "browser", rest).await.content["text"], "ä".repeat(10_000));
}

/// Server-side request forgery: addresses of the machine and of its network, directly, by name and by redirect.
#[tokio::test]
async fn private_addresses_are_not_read() {
    let internal = serve(Router::new().route("/secret", get(|| async { SECRET }))).await;
    let address = serve(pages(internal)).await;
    let tools = tools(json!({"browser": {"allow_private": [address.to_string()]}}));
    let port = internal.port();
    let mut lines = Vec::new();
    // The system does not look up so long a part of a name.
    let unknown = "x".repeat(64);
    for url in [
        format!("http://127.0.0.1:{port}/secret"),
        format!("http://localhost:{port}/secret"),
        format!("http://{unknown}:{port}/secret"),
        format!("http://[::1]:{port}/secret"),
        format!("http://[::ffff:127.0.0.1]:{port}/secret"),
        format!("http://0.0.0.0:{port}/secret"),
        format!("http://2130706433:{port}/secret"),
        format!("http://0x7f.1:{port}/secret"),
        format!("http://user@127.0.0.1:{port}/secret"),
        format!("http://{address}/inside"),
        format!("http://{address}/file"),
        format!("http://{address}/name"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "file:///etc/passwd".to_owned(),
        "not an address".to_owned(),
    ] {
        let outcome = call(&tools, "browser", json!({"url": url})).await;
        assert!(!outcome.text.contains(SECRET), "{url}: {}", outcome.text);
        assert_eq!(outcome.failure, Some(Failure::Tool), "{url}");
        let line = format!("{url}: {}", outcome.text);
        let line = line.replace(&unknown, "UNKNOWN");
        lines.push(line.replace(&address.to_string(), "HOST").replace(&port.to_string(), "PORT"));
    }
    expect![[r#"
        http://127.0.0.1:PORT/secret: browser: 127.0.0.1 is not a public address, and only public addresses can be used
        http://localhost:PORT/secret: browser: localhost is not a public address, and only public addresses can be used
        http://UNKNOWN:PORT/secret: browser: UNKNOWN is not a public address, and only public addresses can be used
        http://[::1]:PORT/secret: browser: [::1] is not a public address, and only public addresses can be used
        http://[::ffff:127.0.0.1]:PORT/secret: browser: [::ffff:7f00:1] is not a public address, and only public addresses can be used
        http://0.0.0.0:PORT/secret: browser: 0.0.0.0 is not a public address, and only public addresses can be used
        http://2130706433:PORT/secret: browser: 127.0.0.1 is not a public address, and only public addresses can be used
        http://0x7f.1:PORT/secret: browser: 127.0.0.1 is not a public address, and only public addresses can be used
        http://user@127.0.0.1:PORT/secret: browser: a URL with a user name is not used
        http://HOST/inside: browser: 127.0.0.1 is not a public address, and only public addresses can be used
        http://HOST/file: browser: file: only http and https can be used
        http://HOST/name: browser: localhost is not a public address, and only public addresses can be used
        http://169.254.169.254/latest/meta-data: browser: 169.254.169.254 is not a public address, and only public addresses can be used
        file:///etc/passwd: browser: file: only http and https can be used
        not an address: browser: "not an address" is not a valid URL: relative URL without a base"#]].assert_eq(&lines.join("\n"));
}

/// The answers have the form of the providers' documentation.
fn providers() -> Router {
    Router::new()
        .route(
            "/brave",
            get(|headers: HeaderMap, uri: Uri| async move {
                if headers.get("x-subscription-token").is_none_or(|key| key != "key-1") {
                    return StatusCode::UNAUTHORIZED.into_response();
                }
                let asked = uri.query().unwrap_or_default();
                json!({"web": {"results": [
                    {"title": "One", "url": "https://one.example/", "description": asked},
                    {"title": "No address"}]}})
                .to_string()
                .into_response()
            }),
        )
        .route(
            "/tavily",
            post(|headers: HeaderMap, body: String| async move {
                let key =
                    headers.get("authorization").and_then(|it| it.to_str().ok()).unwrap_or("");
                json!({"results": [{"title": key, "url": "https://t.example/", "content": body}]})
                    .to_string()
            }),
        )
        .route(
            "/searxng/search",
            get(|uri: Uri| async move {
                let asked = uri.query().unwrap_or_default().to_owned();
                json!({"results": [{"title": "S", "url": "https://s.example/", "content": asked}]})
                    .to_string()
            }),
        )
}

#[tokio::test]
async fn searches_use_the_configured_provider() {
    let address = serve(providers()).await;
    let key = json!({"env": "SEARCH_KEY"});
    let mut lines = Vec::new();
    for search in [
        json!({"provider": "brave", "url": format!("http://{address}/brave"), "key": key}),
        json!({"provider": "brave", "url": format!("http://{address}/brave"), "key": "wrong"}),
        json!({"provider": "tavily", "url": format!("http://{address}/tavily"), "key": key}),
        json!({"provider": "searxng", "url": format!("http://{address}/searxng")}),
        json!({"provider": "searxng", "url": format!("http://{address}/none")}),
    ] {
        let tools = tools(json!({"search": search}));
        let arguments = json!({"query": "a & b", "count": 3});
        let outcome = call(&tools, "search", arguments).await;
        lines.push(outcome.text.replace(&address.to_string(), "HOST"));
    }
    expect![[r#"
        1. One
           https://one.example/
           q=a+%26+b&count=3
        search: 127.0.0.1 responded with HTTP 401 Unauthorized
        1. Bearer key-1
           https://t.example/
           {"max_results":3,"query":"a & b"}
        1. S
           https://s.example/
           q=a+%26+b&format=json
        search: 127.0.0.1 responded with HTTP 404 Not Found"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn search_settings_are_checked() {
    let mut lines = Vec::new();
    for search in [
        json!({"provider": "brave"}),
        json!({"provider": "searxng"}),
        json!({"provider": "brave", "key": {"env": "UNSET"}}),
        json!({"provider": "google"}),
        json!({"provider": "brave", "token": "x"}),
    ] {
        let config: Result<BuiltinToolsConfig, _> =
            serde_json::from_value(json!({"search": search}));
        let added = config.map_err(|why| why.to_string()).and_then(|config| {
            add_builtin_tools(&Tools::new(), &config, None, &Environment::default())
                .map_err(|why| why.to_string())
        });
        lines.push(added.expect_err("it is refused"));
    }
    let without = serde_json::from_value(json!({"without": ["exec"]})).expect("it is valid");
    let refused = add_builtin_tools(&Tools::new(), &without, None, &Environment::default());
    lines.push(refused.expect_err("it is refused").to_string());
    expect![[r#"
        invalid definition of search: this provider needs a key
        invalid definition of search: searxng needs the url of its server
        invalid definition of search: the environment variable UNSET is not set
        unknown variant `google`, expected one of `brave`, `tavily`, `searxng`
        unknown field `token`, expected one of `provider`, `url`, `key`, `timeout_ms`
        invalid definition of builtin_tools: unknown built-in tool exec in without; known: browser, edit_file, execute, glob, grep, inspect_package, ls, read_file, search, write_file"#]].assert_eq(&lines.join("\n"));
}

fn registries() -> Router {
    Router::new()
        .route(
            "/{name}",
            get(|Path(name): Path<String>| async move {
                json!({"name": name, "description": "From npm", "license": "MIT", "readme": "# Hi",
                    "dist-tags": {"latest": "1.10.0"}, "repository": {"url": "git+https://r.example"},
                    "time": {"1.9.0": "2025-01-02T00:00:00.000Z", "1.10.0": "2025-03-04T00:00:00.000Z"},
                    "versions": {"1.10.0": {}, "1.9.0": {}}})
                .to_string()
            }),
        )
        .route(
            "/pypi/{name}/json",
            get(|| async {
                json!({"info": {"version": "0.10", "license": null,
                    "license_expression": "BSD-3-Clause", "summary": "From PyPI", "description": "Long text",
                    "project_urls": {"Source": "https://s.example"}},
                    "releases": {"0.9": [{"upload_time_iso_8601": "2025-01-02T00:00:00.000000Z"}],
                        "0.10": [{"upload_time_iso_8601": "2025-03-04T00:00:00.000000Z"}]}})
                .to_string()
            }),
        )
        .route(
            "/api/v1/crates/{name}",
            get(|Path(name): Path<String>| async move {
                if name == "missing" {
                    return StatusCode::NOT_FOUND.into_response();
                }
                json!({"crate": {"max_stable_version": "0.2.0", "description": "From Rust",
                    "repository": "https://c.example"}, "versions": [
                    {"num": "0.2.0", "license": "MIT OR Apache-2.0"}, {"num": "0.1.0"}]})
                .to_string()
                .into_response()
            }),
        )
        .route("/api/v1/crates/{name}/{version}/readme", get(|| async { Html("<h1>Read me</h1>") }))
}

#[tokio::test]
async fn packages_are_inspected() {
    let address = serve(registries()).await;
    let base = format!("http://{address}");
    let tools = tools(json!({"packages": {"npm": base, "pypi": base, "rust": base}}));
    let mut lines = Vec::new();
    for (registry, name) in [
        ("npm", "left-pad"),
        ("npm", "@scope/name"),
        ("pypi", "requests"),
        ("rust", "serde"),
        ("rust", "missing"),
        ("npm", "../secret"),
        ("npm", "@../a"),
        ("pypi", "a/b"),
        ("rust", ""),
        ("rubygems", "rails"),
    ] {
        let arguments = json!({"registry": registry, "name": name});
        let outcome = call(&tools, "inspect_package", arguments).await;
        lines.push(outcome.text);
    }
    expect![[r#"
        left-pad 1.10.0
        From npm
        licence: MIT
        repository: git+https://r.example
        versions (2): 1.10.0, 1.9.0

        # Hi
        @scope/name 1.10.0
        From npm
        licence: MIT
        repository: git+https://r.example
        versions (2): 1.10.0, 1.9.0

        # Hi
        requests 0.10
        From PyPI
        licence: BSD-3-Clause
        repository: https://s.example
        versions (2): 0.10, 0.9

        Long text
        serde 0.2.0
        From Rust
        licence: MIT OR Apache-2.0
        repository: https://c.example
        versions (2): 0.2.0, 0.1.0

        # Read me
        inspect_package: the registry has no package of this name
        inspect_package: "../secret" is not the name of a package
        inspect_package: "@../a" is not the name of a package
        inspect_package: "a/b" is not the name of a package
        inspect_package: "" is not the name of a package
        inspect_package: unknown variant `rubygems`, expected one of `npm`, `pypi`, `rust`"#]]
    .assert_eq(&lines.join("\n"));
}
