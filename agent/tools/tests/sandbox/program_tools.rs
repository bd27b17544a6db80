//! Program tools of a configuration run in the sandbox, and receive the context of the call.

use abide_tools::{
    Environment, Failure, Invocation, SubprocessTool, SubprocessToolConfig, Tool as _, ToolContext,
    ToolOutcome,
};
use serde_json::{Value, json};

use crate::{Home, SECRET, backends, environment, tenant};

async fn run(home: &Home, config: Value, context: ToolContext) -> ToolOutcome {
    let config: SubprocessToolConfig = serde_json::from_value(config).expect("it is valid");
    let tool = SubprocessTool::in_sandbox(config, &environment(), Some(&home.sandbox));
    let tool = tool.map_err(|why| why.to_string()).expect("it is valid");
    tool.run(Invocation::new("call-1", json!({}), context)).await
}

fn script(script: &str) -> Value {
    json!({"name": "tool", "description": "", "command": ["sh", "-c", script], "stdin": "empty"})
}

#[tokio::test]
async fn program_tools_run_in_the_sandbox() {
    for backend in backends() {
        let home = Home::with(&json!({"backend": backend}));
        let secret = home.path("secret").display().to_string();
        let outcome = run(&home, script(&format!("cat {secret} ../secret")), tenant("acme")).await;
        assert_eq!(outcome.failure, Some(Failure::Tool), "{backend}: {}", outcome.text);
        assert!(!outcome.text.contains(SECRET), "{backend}: {}", outcome.text);

        let mut permitted = script(&format!("cat {secret}; echo x > {secret}"));
        permitted["readable"] = json!([secret]);
        let outcome = run(&home, permitted, ToolContext::default()).await;
        assert!(outcome.text.contains(SECRET), "{backend}: {}", outcome.text);
        assert_eq!(outcome.failure, Some(Failure::Tool), "{backend}");

        let mut writes = script(&format!("echo changed > {secret}"));
        writes["writable"] = json!([secret]);
        let outcome = run(&home, writes, ToolContext::default()).await;
        assert_eq!(outcome.failure, None, "{backend}: {}", outcome.text);

        let mut missing = script("");
        missing["command"] = json!(["no-such-program"]);
        let outcome = run(&home, missing, ToolContext::default()).await;
        assert!(outcome.is_error, "{backend}");
        if backend == abide_tools::BackendName::Local {
            assert_eq!(outcome.failure, Some(Failure::Unavailable), "{}", outcome.text);
        }

        let mut slow = script("trap '' TERM; echo begin; while :; do sleep 1; done");
        slow["timeout_ms"] = json!(1_000);
        slow["grace_ms"] = json!(100);
        let outcome = run(&home, slow, ToolContext::default()).await;
        assert_eq!(outcome.failure, Some(Failure::TimedOut), "{backend}: {}", outcome.text);
        assert_eq!(outcome.content["stdout"], "begin\n", "{backend}: {}", outcome.content);
    }
}

#[tokio::test]
async fn a_program_receives_the_context_of_its_call() {
    let home = Home::new();
    let mut context = tenant("acme");
    context.agent = "clerk".to_owned();
    context.run_id = Some("run-1".to_owned());
    context.thread_id = Some("session-acme".to_owned());
    context.metadata = json!({"order": 7}).as_object().expect("it is an object").clone();
    let expected = json!({"call_id": "call-1", "session_id": "session-acme", "agent": "clerk",
        "run_id": "run-1", "thread_id": "session-acme", "scope": {"tenant": "acme"},
        "metadata": {"order": 7}});
    let mut config = script("printf %s \"$ABIDE_CONTEXT\"");
    config["output"] = json!("json");
    // A variable of the configuration does not replace it.
    config["env"] = json!({"ABIDE_CONTEXT": "forged"});
    let outcome = run(&home, config.clone(), context.clone()).await;
    assert_eq!(outcome.content["output"], expected, "{}", outcome.text);

    // The same without a sandbox, and in a command of a model.
    let plain: SubprocessToolConfig = serde_json::from_value(config).expect("it is valid");
    let plain = SubprocessTool::new(plain, &Environment::default());
    let plain = plain.map_err(|why| why.to_string()).expect("it is valid");
    let forged = json!({"scope": {"tenant": "evil"}, "ABIDE_CONTEXT": "{}"});
    let outcome = plain.run(Invocation::new("call-1", forged, context.clone())).await;
    assert_eq!(outcome.content["output"], expected, "{}", outcome.text);
    let arguments = json!({"command": "printf %s \"$ABIDE_CONTEXT\""});
    let outcome = home.call_in("execute", arguments, context).await;
    let stdout: Value = serde_json::from_str(outcome.content["stdout"].as_str().expect("a text"))
        .expect("it is JSON");
    assert_eq!(stdout, expected);
}
