//! A test for each limit of a run.

use crate::house::House;

/// The run's last event, and what the tools did.
async fn ends(definition: &str, script: &str) -> (String, Vec<String>) {
    let house = House::of(definition, script).await;
    let run = house.begin("Go on.").await;
    let (_, last) = house.told(&run.id, 0).await;
    let (told, ledger) = (format!("{} {}", last.kind, last.data), house.ledger());
    house.close().await;
    (told, ledger)
}

const FOR_EVER: &str =
    "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }] }]\n";

#[tokio::test]
async fn recursion_limit() {
    let (told, ledger) = ends("tools: [look]\nconfig: { recursion_limit: 3 }\n", FOR_EVER).await;
    assert_eq!(told, r#"error {"code":"recursion_limit","message":"the model was asked 3 times"}"#);
    assert_eq!(ledger, ["look A"; 3]);
}

#[tokio::test]
async fn token_limit() {
    let script = "repeat: true\nanswers: [{ calls: [{ name: look, arguments: { order: A } }], \
                  usage: { input_tokens: 5, output_tokens: 5 } }]\n";
    let (told, ledger) = ends("tools: [look]\nlimits: { tokens: 20 }\n", script).await;
    assert_eq!(told, r#"error {"code":"token_limit","message":"the run has used its 20 tokens"}"#);
    assert_eq!(ledger, ["look A"; 2]);
}

#[tokio::test]
async fn tool_call_limit_skips_what_is_over_it() {
    let script = r#"
answers:
  - calls:
      - { name: look, arguments: { order: A } }
      - { name: look, arguments: { order: B } }
      - { name: look, arguments: { order: C } }
  - text: Two are enough.
"#;
    let (told, mut ledger) = ends("tools: [look]\nlimits: { tool_calls: 2 }\n", script).await;
    ledger.sort();
    assert_eq!(ledger, ["look A", "look B"]);
    assert!(told.contains("Two are enough."), "{told}");
}

#[tokio::test]
async fn wall_clock_limit_ends_a_stalled_answer() {
    let script = "first_token_ms: 600000\nanswers: [{ text: late }]\n";
    let (told, _) = ends("limits: { wall_clock_seconds: 1 }\n", script).await;
    assert!(told.contains("execution_timeout"), "{told}");
}

#[tokio::test]
async fn an_unknown_model_is_an_error_that_names_those_that_there_are() {
    let script = "answers: [{ text: hi }]\n";
    let (told, _) = ends("config: { model: other }\n", script).await;
    assert!(told.starts_with("error") && told.contains("scripted"), "{told}");
}
