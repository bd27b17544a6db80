//! The registry, views of agents, and outcomes of calls.

use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ConfiguredTools, Selection, Tools};
use crate::function::Function;
use crate::outcome::ToolOutcome;
use crate::tool::{Invocation, Tool, ToolContext, ToolDeclaration};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn tool(name: &str) -> Function {
    Function::new(name, "says yes", |_: Nothing, _| async { Ok::<_, String>("yes") })
}

fn tools(names: &[&str]) -> Tools {
    let tools = Tools::new();
    names.iter().for_each(|name| tools.add(tool(name)).expect("it is new"));
    tools
}

fn selection(tools: Option<&[&str]>, blocked: &[&str], excluded: &[&str]) -> Selection {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    Selection { tools: tools.map(owned), blocked: owned(blocked), excluded: owned(excluded) }
}

/// The visible tools, and the outcome of a call of each of the four and of an unknown one.
fn check(selection: Selection, expected: Expect) {
    let view = tools(&["fs_read", "fs_write", "search", "shell"]).view(selection);
    let output = view.map(|view| {
        let mut lines = vec![format!("shown: {}", view.names().join(" "))];
        for name in ["fs_read", "fs_write", "search", "shell", "nosuch"] {
            lines.push(match view.admit(name, "{}") {
                Ok(_) => format!("{name}: runs"),
                Err(outcome) => outcome.text,
            });
        }
        lines.join("\n")
    });
    expected.assert_eq(&output.unwrap_or_else(|why| format!("{}: {why}", why.code())));
}

#[test]
fn an_agent_has_all_tools_by_default() {
    check(
        Selection::default(),
        expect![[r#"
            shown: fs_read fs_write search shell
            fs_read: runs
            fs_write: runs
            search: runs
            shell: runs
            unknown tool nosuch; available: fs_read, fs_write, search, shell"#]],
    );
}

#[test]
fn a_blocked_tool_is_visible_and_an_excluded_one_is_not() {
    check(
        selection(Some(&["fs_*", "shell"]), &["fs_write"], &["shell"]),
        expect![[r#"
            shown: fs_read fs_write
            fs_read: runs
            calls of fs_write are blocked for this agent: continue without it
            unknown tool search; available: fs_read, fs_write
            unknown tool shell; available: fs_read, fs_write
            unknown tool nosuch; available: fs_read, fs_write"#]],
    );
}

#[test]
fn a_tool_that_the_operator_blocks_is_denied_to_every_agent() {
    let tools = tools(&["fs_read", "fs_write", "search"]);
    tools.block(vec!["fs_*".to_owned()]).expect("there are such tools");
    // A definition cannot lift it, and a tool that is added later is denied, too.
    tools.add(tool("fs_late")).expect("it is new");
    let view = tools.view(selection(Some(&["fs_*", "search"]), &[], &[])).expect("they exist");
    for name in ["fs_read", "fs_write", "fs_late"] {
        let denied = view.admit(name, "{}").map(drop).expect_err("it is denied");
        let text = format!("calls of {name} are blocked for all agents: continue without it");
        assert_eq!((denied.text, denied.failure), (text, Some(crate::Failure::Denied)));
        assert!(view.is_blocked(name) && view.get(name).is_none(), "{name}");
    }
    assert!(view.admit("search", "{}").is_ok());
    let unknown = tools.block(vec!["serch".to_owned()]).expect_err("there is no such tool");
    assert_eq!(unknown.code(), "unknown_tool");
}

#[test]
fn a_definition_with_unknown_names_is_refused() {
    check(
        selection(Some(&["search", "sarch", "web_*"]), &["sarch"], &["nosuch"]),
        expect![
            "unknown_tool: unknown tool sarch, web_*, sarch, nosuch; available: fs_read, fs_write, search, shell"
        ],
    );
}

#[test]
fn names_and_schemas_are_validated() {
    let tools = tools(&["one"]);
    let refused = |name: &str, parameters: Value| {
        let declaration = ToolDeclaration::new(name, "", parameters);
        let tool = Function::untyped(declaration, |_| async { ToolOutcome::text("") });
        tools.add(tool).expect_err("it is refused").to_string()
    };
    let output = [
        refused("one", json!({})),
        refused("two words", json!({})),
        refused(&"x".repeat(65), json!({})).replace(&"x".repeat(65), "x…"),
        refused("two", json!({"type": "objekt"})),
        refused("two", json!({"$ref": "https://example.com/schema.json"})),
    ];
    expect![[r#"
        tool one already exists
        invalid tool name "two words": use letters, digits, _ and -, at most 64
        invalid tool name "x…": use letters, digits, _ and -, at most 64
        the parameters of two are not a supported JSON Schema: type must be the name of a type, not "objekt"
        the parameters of two are not a supported JSON Schema: unknown reference "https://example.com/schema.json""#]]
    .assert_eq(&output.join("\n"));
}

#[test]
fn a_source_replaces_only_its_own_tools() {
    let tools = tools(&["mine"]);
    let revision = tools.revision();
    tools.announce("files", "fs_").expect("it is the first");
    assert!(tools.announce("files", "db_").is_err(), "there is one");
    let early = selection(Some(&["fs_read", "fs_*"]), &[], &[]);
    assert!(tools.view(early.clone()).is_ok(), "the source has not listed its tools yet");
    assert!(tools.view(selection(Some(&["db_read"]), &[], &[])).is_err());

    let of_it =
        |names: &[&str]| names.iter().map(|name| Arc::new(tool(name)) as Arc<dyn Tool>).collect();
    let problems = tools.replace("files", of_it(&["fs_read", "mine", "fs_list"]));
    assert_eq!(problems, ["tool mine already exists"]);
    assert_eq!(tools.names(), ["fs_list", "fs_read", "mine"]);
    assert_eq!(tools.replace("files", of_it(&["fs_stat"])), [""; 0]);
    assert_eq!(tools.names(), ["fs_stat", "mine"]);
    assert!(tools.view(early).is_err(), "the source has no fs_read");
    tools.withdraw("files");
    assert_eq!(tools.names(), ["mine"]);
    assert_eq!(*revision.borrow(), 6, "one tool, two announcements, two lists, one withdrawal");
}

/// A configuration replaces its own tools, its own deny list and the sources that leave, in one step. A configuration that
/// cannot work changes nothing.
#[test]
fn a_configuration_replaces_only_what_an_earlier_one_said() {
    let tools = tools(&["mine"]);
    tools.block(vec!["mine".to_owned()]).expect("there is one");
    let configured = |names: &[&str], blocked: &[&str]| ConfiguredTools {
        tools: Some(self::tools(names)),
        blocked: blocked.iter().map(|name| (*name).to_owned()).collect(),
        ..ConfiguredTools::default()
    };
    tools.configure(configured(&["look", "pay"], &["pay"])).expect("it is valid");
    tools.announce("files", "fs_").expect("it is the first");
    tools.replace("files", vec![Arc::new(tool("fs_read"))]);
    let state = || {
        let view = tools.view(Selection::default()).expect("no name is unknown");
        let blocked = |name: &String| if view.is_blocked(name) { "-" } else { "" };
        let names = tools.names();
        names.iter().map(|it| format!("{}{it}", blocked(it))).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(state(), "fs_read look -mine -pay");
    let change = |change: ConfiguredTools| tools.configure(change).expect_err("it is refused");
    let coming = |name: &str| vec![(name.to_owned(), format!("{name}_"))];
    for (wrong, code) in [
        (configured(&["new", "mine"], &[]), "duplicate_tool"),
        (configured(&["new", "fs_read"], &[]), "duplicate_tool"),
        (configured(&["new"], &["pay"]), "unknown_tool"),
        (
            ConfiguredTools { coming: coming("files"), ..configured(&["new"], &[]) },
            "duplicate_source",
        ),
    ] {
        assert_eq!(change(wrong).code(), code);
        assert_eq!(state(), "fs_read look -mine -pay", "{code}");
    }
    // A source that comes may provide a blocked tool, and one that leaves takes its tools with it.
    let next = ConfiguredTools {
        leaving: vec!["files".to_owned()],
        coming: coming("web"),
        ..configured(&["pay", "fs_read"], &["web_*"])
    };
    tools.configure(next).expect("it is valid");
    tools.replace("web", vec![Arc::new(tool("web_get"))]);
    assert_eq!(state(), "fs_read -mine pay -web_get");
    // Without tools, those of the earlier one stay.
    tools.configure(ConfiguredTools::default()).expect("it is valid");
    assert_eq!(state(), "fs_read -mine pay web_get");
}

/// The outcome of a function with a timeout of three seconds.
async fn run(function: Function, arguments: &str) -> ToolOutcome {
    let name = function.declaration().name.clone();
    let tools = Tools::new();
    tools.add(function).expect("it is new");
    let view = tools.view(Selection::default()).expect("no name is unknown");
    let context = ToolContext { session_id: "s1".to_owned(), ..ToolContext::default() };
    match view.admit(&name, arguments) {
        Ok(admitted) => admitted.run("c1", context).await,
        Err(outcome) => outcome,
    }
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    a: i64,
    b: i64,
}

#[tokio::test(start_paused = true)]
async fn every_result_of_a_function_is_an_outcome() {
    let sum = || {
        Function::new("sum", "adds", |Sum { a, b }: Sum, context: ToolContext| async move {
            let sum = a.checked_add(b).ok_or("too large")?;
            Ok::<_, &str>(json!({ "sum": sum, "session": context.session_id }))
        })
    };
    let panics = Function::new("panics", "", |_: Nothing, _| async {
        if true {
            panic!("a secret");
        }
        Ok::<_, String>(())
    });
    let early = |_: Nothing, _| -> std::future::Ready<ToolOutcome> { panic!("before it began") };
    let hangs = Function::new("hangs", "", |_: Nothing, _| std::future::pending::<ToolOutcome>());
    let outcomes = [
        run(sum(), r#"{"a": 1, "b": 2}"#).await,
        run(sum(), r#"{"a": 9223372036854775807, "b": 2}"#).await,
        run(sum(), r#"{"a": 1}"#).await,
        run(sum(), r#"{"a": 1"#).await,
        run(panics, "").await,
        run(Function::new("early", "", early), "").await,
        run(hangs.timeout(Duration::from_secs(3)), "").await,
    ];
    let output = outcomes.map(|outcome| serde_json::to_string(&outcome).expect("it is JSON"));
    expect![[r#"
        {"content":{"session":"s1","sum":3},"text":"{\"session\":\"s1\",\"sum\":3}","is_error":false,"exit_code":0}
        {"content":{"error":{"code":"tool","message":"too large"}},"text":"too large","is_error":true,"exit_code":1,"failure":"tool"}
        {"content":{"error":{"code":"arguments","message":"sum: invalid arguments: \"b\" is a required property. Parameters: a (integer, required), b (integer, required)"}},"text":"sum: invalid arguments: \"b\" is a required property. Parameters: a (integer, required), b (integer, required)","is_error":true,"exit_code":1,"failure":"arguments"}
        {"content":{"error":{"code":"arguments","message":"sum: the arguments are not JSON: EOF while parsing an object at line 1 column 7. Parameters: a (integer, required), b (integer, required)"}},"text":"sum: the arguments are not JSON: EOF while parsing an object at line 1 column 7. Parameters: a (integer, required), b (integer, required)","is_error":true,"exit_code":1,"failure":"arguments"}
        {"content":{"error":{"code":"panicked","message":"panics panicked; this is a bug in the tool"}},"text":"panics panicked; this is a bug in the tool","is_error":true,"exit_code":1,"failure":"panicked"}
        {"content":{"error":{"code":"panicked","message":"early panicked; this is a bug in the tool"}},"text":"early panicked; this is a bug in the tool","is_error":true,"exit_code":1,"failure":"panicked"}
        {"content":{"error":{"code":"timed_out","message":"hangs timed out after 3 s"}},"text":"hangs timed out after 3 s","is_error":true,"exit_code":1,"failure":"timed_out"}"#]]
    .assert_eq(&output.join("\n"));
}

#[tokio::test]
async fn a_cancelled_function_stops() {
    let hangs = Function::new("hangs", "", |_: Nothing, _| std::future::pending::<ToolOutcome>());
    let invocation = Invocation::new("c1", json!({}), ToolContext::default());
    let cancel = invocation.cancel.clone();
    let running = hangs.run(invocation);
    cancel.cancel();
    assert_eq!(running.await.text, "hangs was cancelled");
}
