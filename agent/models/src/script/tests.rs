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

/// Class: an error at another place than the wrong value. That of a missing field was at the last field of the map.
#[test]
fn an_error_of_a_script_is_at_the_wrong_value() {
    let mut lines = String::new();
    for text in [
        "answers:\n  - text: a\n    cals: []\n",
        "answers:\n  - calls:\n      - id: c1\n        arguments: {}\n",
        "answers:\n  - text: a\n  - error: { kind: tiemout }\n",
        "answers:\n  - text: a\n    usage:\n      input_tokens: many\n",
        "answers:\n  - &answer\n    text: a\n    calls: [{ nam: ls }]\n  - *answer\n",
        "answers:\n  - text: [a]\n",
        "answers: [{ text: été, stop: { othr: x } }]\n",
        "answers: [{ text: a, text: b }]\n",
        "answers: a\n",
        "repeat: true\n",
        "answers: []\nrepeat: yes\n",
        "answers: []\ntoken_ms: -1\n",
        "answers: [\n",
        "answers: []\n---\nanswers: []\n",
        "",
    ] {
        let error = Script::from_text(text).expect_err(text);
        lines += &format!("{text:?}\n    {error}\n");
    }
    expect![[r#"
        "answers:\n  - text: a\n    cals: []\n"
            unknown field `cals`, expected one of text, reasoning, calls, usage, stop, error at line 3, column 5
        "answers:\n  - calls:\n      - id: c1\n        arguments: {}\n"
            missing field `name` at line 3, column 9
        "answers:\n  - text: a\n  - error: { kind: tiemout }\n"
            unknown value `tiemout`, expected one of rate_limited, overloaded, unavailable, stalled, invalid_response, unauthorized, bad_request, context_too_long, no_recording, cancelled at line 3, column 20
        "answers:\n  - text: a\n    usage:\n      input_tokens: many\n"
            expected an integer that is not negative at line 4, column 21
        "answers:\n  - &answer\n    text: a\n    calls: [{ nam: ls }]\n  - *answer\n"
            unknown field `nam`, expected one of id, name, arguments at line 4, column 15
        "answers:\n  - text: [a]\n"
            expected a text at line 2, column 11
        "answers: [{ text: été, stop: { othr: x } }]\n"
            unknown value `othr`, expected one of end, tool_use, length, filtered, unknown_tool, other at line 1, column 32
        "answers: [{ text: a, text: b }]\n"
            the key text is there twice at line 1, column 22
        "answers: a\n"
            expected a list at line 1, column 10
        "repeat: true\n"
            missing field `answers` at line 1, column 1
        "answers: []\nrepeat: yes\n"
            expected true or false at line 2, column 9
        "answers: []\ntoken_ms: -1\n"
            expected an integer that is not negative at line 2, column 11
        "answers: [\n"
            unclosed bracket '[' at line 1, column 10
        "answers: []\n---\nanswers: []\n"
            the file has several documents, and only one can be read at line 2, column 1
        ""
            missing field `answers` at line 1, column 1
    "#]].assert_eq(&lines);
}

#[tokio::test]
async fn an_empty_script_has_no_answer() {
    let script = Script::from_text("{ answers: [], repeat: true }").expect("it is a script");
    assert_eq!(
        answer_of(script.stream(after(0))).await.expect_err("there is none").code(),
        "no_recording"
    );
}
