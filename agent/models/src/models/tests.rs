//! Choice of providers, and invalid configurations.

use std::collections::HashMap;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;

/// Providers from a configuration in JSON; the environment has one key.
fn configured(config: Value) -> Result<Models, String> {
    let config: ModelsConfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
    let environment = HashMap::from([("KEY", "sk-secret"), ("EMPTY", " ")]);
    let environment = |name: &str| environment.get(name).map(|value| (*value).to_owned());
    let surroundings = ConfigContext { environment: &environment, folder: Path::new("") };
    Models::new(config, &surroundings).map_err(|error| error.to_string())
}

fn models(config: Value) -> Models {
    configured(config).expect("the configuration is valid")
}

fn wanted(text: &str) -> ModelSelection {
    let part = |part: &str| (part != "-").then(|| part.to_owned());
    let (provider, model) = text.split_once(' ').expect("provider and model");
    ModelSelection { provider: part(provider), model: part(model) }
}

/// The choice for each request, one per line; `-` stands for a missing name.
fn check(models: &Models, wanteds: &[&str], expected: Expect) {
    let lines = wanteds.iter().map(|text| match models.resolve(&wanted(text)) {
        Ok(resolved) => format!("{text} → {resolved:?}"),
        Err(error) => format!("{text} → {}: {error}", error.code()),
    });
    expected.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_request_goes_to_the_named_provider() {
    let models = models(json!({
        "default": { "provider": "claude", "model": "sonnet" },
        "providers": [
            { "id": "claude", "kind": "anthropic", "models": ["sonnet", "haiku"] },
            { "id": "gpt", "kind": "openai", "models": ["gpt"] },
            { "id": "local", "kind": "ollama" },
            { "id": "off", "kind": "gemini", "enabled": false, "models": ["flash"] },
            { "id": "keyless", "kind": "openai_responses", "key_env": "NOT_THERE" },
        ],
    }));
    check(
        &models,
        &[
            "- -",
            "claude -",
            "claude haiku",
            "- haiku",
            "gpt -",
            "- gpt",
            "local llama",
            "local -",
            "claude gpt",
            "who -",
            "off flash",
            "- flash",
            "keyless any",
            "- any",
        ],
        expect![[r#"
            - - → claude/sonnet
            claude - → claude/sonnet
            claude haiku → claude/haiku
            - haiku → claude/haiku
            gpt - → gpt/gpt
            - gpt → gpt/gpt
            local llama → local/llama
            local - → no_model: no model is named, and provider `local` does not have exactly one; available: `local/(any)`
            claude gpt → unknown_model: no enabled provider has the model `gpt`; available: `claude/sonnet`, `claude/haiku`
            who - → unknown_provider: unknown provider `who`; available: `claude`, `gpt`, `local`, `off`, `keyless`
            off flash → provider_disabled: provider `off` is disabled
            - flash → ambiguous_model: several providers match: `local/flash`, `keyless/flash`; name one, or set different priorities
            keyless any → key_missing: provider `keyless` cannot be used: the environment variable `NOT_THERE` is not set
            - any → ambiguous_model: several providers match: `local/any`, `keyless/any`; name one, or set different priorities"#]],
    );
}

#[test]
fn priority_decides_between_several_and_a_tie_is_an_error() {
    let config = |priority: i32| {
        models(json!({ "providers": [
            { "id": "a", "kind": "openai", "models": ["m"], "priority": 1 },
            { "id": "b", "kind": "openai", "models": ["m"], "priority": priority },
            { "id": "any", "kind": "ollama", "priority": 9 },
        ]}))
    };
    check(
        &config(2),
        &["- m", "- other", "- -"],
        expect![[r#"
        - m → b/m
        - other → any/other
        - - → no_model: no model is named, and there is no default; available: `a/m`, `b/m`, `any/(any)`"#]],
    );
    check(
        &config(1),
        &["- m"],
        expect![
            "- m → ambiguous_model: several providers match: `a/m`, `b/m`; name one, or set different priorities"
        ],
    );
}

#[test]
fn a_chain_needs_every_candidate_to_be_unique() {
    let models = models(json!({ "providers": [
        { "id": "a", "kind": "openai", "models": ["m"] },
        { "id": "b", "kind": "ollama", "models": ["n"] },
    ]}));
    let chain = |wanteds: &[&str]| {
        let wanteds: Vec<ModelSelection> = wanteds.iter().map(|text| wanted(text)).collect();
        let chain = models.chain(&wanteds, Retry::never());
        chain.map_or_else(|error| error.code().to_owned(), |chain| format!("{chain:?}"))
    };
    assert!(chain(&["- n", "a -"]).contains("candidates: [b/n, a/m]"));
    assert_eq!(chain(&["- n", "a x"]), "unknown_model");
}

/// A provider without a key is not replaced by another one.
#[test]
fn a_missing_key_does_not_select_another_provider() {
    let models = models(json!({ "providers": [
        { "id": "a", "kind": "openai", "models": ["m"], "priority": 1, "key_env": "EMPTY" },
        { "id": "b", "kind": "openai", "models": ["m"], "key_env": "KEY" },
    ]}));
    check(
        &models,
        &["- m", "b m"],
        expect![[r#"
        - m → key_missing: provider `a` cannot be used: the environment variable `EMPTY` is not set
        b m → b/m"#]],
    );
    let missing: Vec<bool> = models.providers().map(|info| info.missing.is_some()).collect();
    assert_eq!(missing, [true, false]);
}

#[test]
fn without_a_default_the_only_model_is_chosen() {
    let one = json!({ "providers": [{ "id": "a", "kind": "ollama", "models": ["m"] }] });
    check(&models(one), &["- -"], expect!["- - → a/m"]);
    check(
        &models(json!({})),
        &["- -", "- m"],
        expect![[r#"
        - - → no_model: no model is named, and there is no default; available: none
        - m → unknown_model: no enabled provider has the model `m`; available: none"#]],
    );
}

#[test]
fn explicit_values_override_defaults() {
    let over = |above: &str, below: &str| {
        let ModelSelection { provider, model } = wanted(above).over(&wanted(below));
        let part = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
        format!("{} {}", part(provider), part(model))
    };
    assert_eq!(over("- -", "p m"), "p m");
    assert_eq!(
        over("q -", "- m"),
        "q m",
        "a model without a provider may be served by any provider"
    );
    assert_eq!(over("- n", "p -"), "p n", "a provider without a model takes any");
    assert_eq!(over("q -", "p m"), "q -", "a different provider does not inherit the model");
    assert_eq!(over("- n", "p m"), "- n", "a different model does not inherit the provider");
    assert_eq!(over("- m", "p m"), "p m");
    assert_eq!(over("q n", "p m"), "q n");
}

#[test]
fn invalid_configurations_are_refused() {
    let refused = |provider: Value, expected: Expect| {
        let config = json!({ "providers": [provider] });
        expected.assert_eq(&configured(config).expect_err("it is refused"));
    };
    refused(
        json!({ "id": "a", "kind": "openai", "api_key": "sk" }),
        expect![
            "unknown field `api_key`, expected one of `id`, `kind`, `base_url`, `key_env`, `key_file`, `key`, `models`, `priority`, `enabled`, `headers`, `extra`, `first_token_timeout_seconds`, `idle_timeout_seconds`, `content_timeout_seconds`, `requires_stop_reason`, `price`, `prices`, `structured_output`, `recordings`, `script`"
        ],
    );
    refused(
        json!({ "id": "a", "kind": "chatgpt" }),
        expect![
            "unknown variant `chatgpt`, expected one of `openai`, `openai_responses`, `anthropic`, `gemini`, `ollama`, `openai_compatible`, `replay`, `script`"
        ],
    );
    refused(
        json!({ "id": "a", "kind": "openai_compatible" }),
        expect!["provider `a`: it has no `base_url`"],
    );
    refused(json!({ "id": "", "kind": "ollama" }), expect!["provider ``: its id is empty"]);
    refused(
        json!({ "id": "a", "kind": "openai", "key": "x", "key_env": "KEY" }),
        expect!["provider `a`: it has several of `key`, `key_env` and `key_file`"],
    );
    refused(
        json!({ "id": "a", "kind": "replay" }),
        expect!["provider `a`: it has no `recordings`"],
    );
    refused(json!({ "id": "a", "kind": "script" }), expect!["provider `a`: it has no `script`"]);
    refused(
        json!({ "id": "a", "kind": "replay", "recordings": ["x"], "base_url": "http://x" }),
        expect!["provider `a`: it has settings that only network providers support"],
    );
    refused(
        json!({ "id": "a", "kind": "ollama", "script": "x" }),
        expect!["provider `a`: only a `script` provider supports `script`"],
    );
    refused(
        json!({ "id": "a", "kind": "gemini", "requires_stop_reason": false }),
        expect![
            "provider `a`: only `openai` and `openai_compatible` providers support `requires_stop_reason`"
        ],
    );
    refused(
        json!({ "id": "a", "kind": "replay", "recordings": ["nowhere.jsonl"] }),
        expect![
            "provider `a`: cannot read file `nowhere.jsonl`: No such file or directory (os error 2)"
        ],
    );
    refused(
        json!({ "id": "a", "kind": "ollama", "models": ["m"], "prices": {
            "n": { "input_per_million": 1, "output_per_million": 1 } } }),
        expect!["provider `a`: it has a price for `n`, which is not in its `models`"],
    );
    let twice = json!({ "id": "a", "kind": "ollama" });
    let twice = configured(json!({ "providers": [twice, twice] })).expect_err("it is refused");
    assert_eq!(twice, "provider `a`: another provider has the same id");
}

/// Class: an error in a file that a provider names is reported at another file, with which an editor opens the wrong one.
#[test]
fn an_error_in_a_file_of_a_provider_has_its_place_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |field: &str, text: &str| {
        fs::write(folder.path().join("file"), text).expect("the file can be written");
        let value = if field == "script" { json!("file") } else { json!(["file"]) };
        let kind = if field == "script" { "script" } else { "replay" };
        let config = json!({ "providers": [{ "id": "a", "kind": kind, field: value }] });
        let config = serde_json::from_value(config).expect("it is a configuration");
        let surroundings = ConfigContext { folder: folder.path(), ..ConfigContext::of_process() };
        let place = Models::new(config, &surroundings).map(|_| ()).expect_err(text).place?;
        assert_eq!(place.path, folder.path().join("file"));
        Some(place.position.to_string())
    };
    assert_eq!(place("script", "answers:\n  - txt: a\n").as_deref(), Some("2:5"));
    assert_eq!(place("script", "answers: [\n").as_deref(), Some("1:10"));
    let second = "{\"id\": \"a\", \"messages\": []}\n\n{\"id\": 7}\n";
    assert_eq!(place("recordings", second).as_deref(), Some("3:8"));
}

#[test]
fn a_models_price_overrides_the_providers_price() {
    let price = |dollars: u32| json!({"input_per_million": dollars, "output_per_million": 9});
    let config = json!({ "providers": [
        { "id": "a", "kind": "ollama", "models": ["m", "n"], "price": price(1),
          "prices": { "n": price(2) } },
        { "id": "b", "kind": "ollama", "models": ["o"] },
    ] });
    let config = serde_json::from_value(config).expect("it is valid");
    let surroundings = ConfigContext { environment: &|_| None, folder: Path::new("") };
    let models = Models::new(config, &surroundings).expect("it is valid");
    let price = |of: &str| {
        let resolved = models.resolve(&wanted(of)).expect("the choice is unique");
        resolved.price.map(|price| price.input_micros)
    };
    let prices = (price("a m"), price("a n"), price("b o"));
    assert_eq!(prices, (Some(1_000_000), Some(2_000_000), None));
}

/// With or without a trailing line break.
#[test]
fn a_key_can_be_in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("key"), "sk-from-file\n").expect("the file can be written");
    fs::write(folder.path().join("empty"), "\n").expect("the file can be written");
    let provider = |id: &str| json!({ "id": id, "kind": "openai", "key_file": id, "models": [id] });
    // As a pipe, which would be waited for.
    fs::create_dir(folder.path().join("other")).expect("the folder can be created");
    let ids = ["key", "empty", "absent", "other"];
    let providers = json!(ids.map(provider));
    let config = serde_json::from_value(json!({ "providers": providers })).expect("it is valid");
    let surroundings = ConfigContext { environment: &|_| None, folder: folder.path() };
    let models = Models::new(config, &surroundings).expect("it is valid");
    assert!(models.resolve(&wanted("key -")).is_ok());
    for (id, why) in
        [("empty", "is empty"), ("absent", "cannot be read"), ("other", "it is not a regular file")]
    {
        let error = models.resolve(&wanted(&format!("{id} -"))).expect_err("there is no key");
        assert!(error.code() == "key_missing" && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_configuration_in_yaml_shows_no_key() {
    let yaml = "
default: { provider: a }
providers:
  - id: a
    kind: openai_compatible
    base_url: http://sk-secret@localhost:8000/v1
    key: sk-secret
    models: [m]
    headers: { x-key: sk-secret }
    extra: { user: sk-secret }
    first_token_timeout_seconds: 5
";
    let config: ModelsConfig = abide_yaml::from_str(yaml).expect("it is a configuration");
    let stall_timeouts = config.providers[0].stall_timeouts();
    assert_eq!((stall_timeouts.first.as_secs(), stall_timeouts.between.as_secs()), (5, 30));
    let shown = format!("{config:?}");
    let surroundings = ConfigContext { environment: &|_| None, folder: Path::new("") };
    let models = Models::new(config, &surroundings).expect("it is valid");
    let resolved = models.resolve(&ModelSelection::default()).expect("the choice is unique");
    assert_eq!(format!("{resolved:?}"), "a/m");
    let shown = format!("{shown} {models:?} {resolved:?}");
    assert!(!shown.contains("sk-secret"), "{shown}");
}
