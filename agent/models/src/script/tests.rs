//! Scripts: answers, delays, and errors.

use expect_test::expect;
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::*;
use crate::{ModelEvent, ModelMessage, answer_of};

const SCRIPT: &str = r#"
answers:
  - text: Let me look.
    reasoning: A file.
    calls:
      - { name: read, arguments: { path: README.md } }
      - { id: mine, name: now }
      - { name: odd, arguments: "{'not': json" }
    usage: { input_tokens: 5, output_tokens: 7 }
  - text: It says hello.
    error: { kind: rate_limited, retry_after_seconds: 3 }
"#;

fn after(answers: usize) -> ModelRequest {
    let history =
        (0..answers).flat_map(|_| [ModelMessage::user("?"), ModelMessage::assistant("!")]);
    let messages = history.chain([ModelMessage::user("And?")]).collect();
    ModelRequest { model: "m".to_owned(), messages, ..ModelRequest::default() }
}

#[tokio::test]
async fn answers_come_in_order() {
    let script = Script::from_text(SCRIPT).expect("it is a script");
    let events: Vec<_> = script.stream(after(0)).collect().await;
    let shown = events.iter().map(|event| match event {
        Ok(ModelEvent::Answer(answer)) => {
            format!("{:?} {:?} {}", answer.stop, answer.usage.completeness, answer.provider)
        }
        event => format!("{:?}", event.as_ref().expect("no error")),
    });
    expect![[r#"
        Reasoning("A ")
        Reasoning("file.")
        Text("Let ")
        Text("me ")
        Text("look.")
        Call(ModelCall { id: "call_1_1", name: "read", arguments: "{\"path\":\"README.md\"}" })
        Call(ModelCall { id: "mine", name: "now", arguments: "{}" })
        Call(ModelCall { id: "call_1_3", name: "odd", arguments: "{'not': json" })
        ToolUse Complete script"#]]
    .assert_eq(&shown.collect::<Vec<_>>().join("\n"));
    let refused = answer_of(script.stream(after(1))).await.expect_err("the first attempt fails");
    assert_eq!(
        (refused.code(), refused.retry_after),
        ("rate_limited", Some(Duration::from_secs(3)))
    );
    let answer = answer_of(script.stream(after(1))).await.expect("once only");
    assert_eq!((answer.text.as_str(), answer.stop), ("It says hello.", Stop::End));
    let none = answer_of(script.stream(after(2))).await.expect_err("there are no more answers");
    assert_eq!(none.to_string(), "the script has 2 answers, but number 3 is requested");
}

#[tokio::test(start_paused = true)]
async fn a_script_can_have_a_pace_and_repeat() {
    let text = "{ answers: [{ text: a b c }], repeat: true, first_token_ms: 100, token_ms: 10 }";
    let script = Script::from_text(text).expect("it is a script");
    let began = Instant::now();
    let answer = answer_of(script.stream(after(41))).await.expect("there is an answer");
    assert_eq!((answer.text.as_str(), began.elapsed()), ("a b c", Duration::from_millis(120)));
}

#[test]
fn invalid_scripts_are_refused() {
    let wrong = |text: &str| Script::from_text(text).expect_err("the script is invalid");
    assert!(wrong("answers: [{ txt: a }]").contains("txt"));
    assert!(wrong("answer: []").contains("answer"));
    assert!(wrong("answers: [").contains("line 1"));
    let path = Path::new("nowhere.yaml");
    let error = Script::from_file(path).expect_err("the file does not exist").to_string();
    assert_eq!(error, "cannot read file `nowhere.yaml`: No such file or directory (os error 2)");
}

#[tokio::test]
async fn an_empty_script_has_no_answer() {
    let script = Script::from_text("{ answers: [], repeat: true }").expect("it is a script");
    assert_eq!(
        answer_of(script.stream(after(0))).await.expect_err("there is none").code(),
        "no_recording"
    );
}
