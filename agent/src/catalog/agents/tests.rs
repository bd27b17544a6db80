//! Reading a folder of definitions.

use expect_test::expect;

use abide_tools::{Effect, Function, ToolContext, Tools};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;

use super::Catalog;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A folder with these files, and a catalog of it with two tools.
fn catalog(files: &[(&str, &str)]) -> (TempDir, Catalog) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("the path has a parent"))
            .expect("the folder can be created");
        std::fs::write(path, text).expect("the file can be written");
    }
    let tools = Tools::new();
    for (name, effect) in [
        ("read_file", Some(Effect::ReadOnly)),
        ("write_file", Some(Effect::Idempotent)),
        ("files_write_file", Some(Effect::AtMostOnce)),
        ("files_read_file", None),
    ] {
        let function = Function::new(name, "Does it.", |_: Nothing, _: ToolContext| async {
            Ok::<_, String>("done")
        });
        let function = effect.into_iter().fold(function, Function::effect);
        tools.add(function).expect("the tool is valid");
    }
    let catalog = Catalog::new(folder.path(), tools);
    (folder, catalog)
}

#[test]
fn native_agents_need_no_file() {
    let (_folder, catalog) = catalog(&[]);
    let (definitions, problems) = catalog.read();
    assert_eq!(problems, []);
    let rendered: Vec<(&str, Vec<&str>, bool)> = definitions
        .iter()
        .map(|it| (it.name.as_str(), it.tools.iter().map(String::as_str).collect(), it.native))
        .collect();
    assert_eq!(
        rendered,
        [
            ("default", vec!["*"], true),
            ("hitl_test", vec!["*"], true),
            ("readonly", vec!["read_file"], true)
        ]
    );
    assert!(definitions[1].interrupt_on.values().all(|it| it.0), "every call needs approval");
}

/// Regression: `readonly` selected tools by name prefix. The tools of an MCP server start with the server's name,
/// so it included `files_write_file`. Now only the declared effect counts; a tool without a declaration is
/// excluded.
#[test]
fn readonly_has_only_tools_that_declare_to_be_read_only() {
    let (_folder, catalog) = catalog(&[]);
    let (definitions, _) = catalog.read();
    let readonly = definitions.iter().find(|it| it.name == "readonly").expect("readonly is native");
    assert_eq!(readonly.tools, ["read_file"]);
}

#[test]
fn invalid_files_are_reported_and_valid_files_are_used() {
    let (folder, catalog) = catalog(&[
        ("agents/good.md", "---\ntools: [read_file]\n---\nBe kind."),
        ("agents/default.yaml", "tools: [read_file]"),
        ("agents/unknown.yaml", "tools: [fly]"),
        ("agents/broken.yaml", "tools: ["),
        ("agents/twice.yaml", "name: good"),
        ("agents/notes.txt", "not one"),
    ]);
    let (definitions, problems) = catalog.read();
    let names: Vec<&str> = definitions.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["default", "hitl_test", "readonly"]);
    assert!(!definitions[0].native, "a file overrides the native agent of the same name");
    let rendered: Vec<(String, &str)> = problems
        .iter()
        .map(|it| {
            (
                it.path.strip_prefix(folder.path()).expect("below").display().to_string(),
                it.error.code(),
            )
        })
        .collect();
    assert_eq!(
        rendered,
        [
            ("agents/broken.yaml".to_owned(), "malformed_definition"),
            ("agents/good.md".to_owned(), "contradiction"),
            ("agents/twice.yaml".to_owned(), "contradiction"),
            ("agents/unknown.yaml".to_owned(), "unknown_tool")
        ]
    );
}

/// A file that was saved by half, or is not UTF-8, was an agent without a prompt and tools, or had to be created.
#[test]
fn a_file_without_a_definition_is_refused() {
    let (folder, catalog) = catalog(&[
        ("agents/blank.yaml", ""),
        ("agents/comments.yaml", "\u{feff}# tools: [pay]\n---\n"),
        ("agents/map.yaml", "{}\n"),
        ("agents/prompt.md", "---\n# tools: [pay]\n---\nBe kind."),
        ("agents/text.md", " \n"),
    ]);
    let latin = folder.path().join("agents/latin.yaml");
    std::fs::write(latin, b"description: caf\xe9\n").expect("the file can be written");
    let (definitions, problems) = catalog.read();
    let names: Vec<&str> =
        definitions.iter().filter(|it| !it.native).map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["map", "prompt"]);
    let folder = folder.path().display().to_string();
    let rendered = problems.iter().map(|problem| {
        let error = &problem.error;
        let hint = error.suggestion().unwrap_or_default();
        format!("{} [{}] ({hint})", problem.to_string().replace(&folder, ""), error.code())
    });
    let empty =
        "the file is empty [malformed_definition] (write the definition, or remove the file)";
    assert_eq!(
        rendered.collect::<Vec<_>>(),
        [
            format!("/agents/blank.yaml: {empty}"),
            format!("/agents/comments.yaml: {empty}"),
            "/agents/latin.yaml: the file cannot be read: it is not UTF-8 [malformed_definition] \
             (save the file as UTF-8)"
                .to_owned(),
            format!("/agents/text.md: {empty}"),
        ]
    );
}

/// Regression: one of two files with the same name was used, depending on the names of the files.
#[test]
fn files_with_the_same_name_are_all_refused() {
    let (folder, catalog) = catalog(&[
        ("agents/a.yaml", "name: clerk"),
        ("agents/b.md", "---\nmode: all\n---\nBe kind."),
        ("agents/clerk.md", "Be brief."),
        ("agents/z.yaml", "name: b"),
    ]);
    let (definitions, problems) = catalog.read();
    assert!(definitions.iter().all(|it| it.native), "{definitions:?}");
    let folder = folder.path().display().to_string();
    let rendered: Vec<String> =
        problems.iter().map(|it| it.to_string().replace(&folder, "")).collect();
    assert_eq!(
        rendered,
        [
            "/agents/a.yaml: /agents/clerk.md also defines agent clerk",
            "/agents/b.md: /agents/z.yaml also defines agent b",
            "/agents/clerk.md: /agents/a.yaml also defines agent clerk",
            "/agents/z.yaml: /agents/b.md also defines agent b",
        ]
    );
}

/// A folder with definitions that cannot work, and some that can.
const WRONG: &[(&str, &str)] = &[
    ("abide.yaml", "models:\n  default: { provider: opnai }\n"),
    ("agents/good.yaml", "subagents: [helper]\nconfig: { provider: script }\n"),
    ("agents/helper.yaml", "mode: subagent\nconfig: { provider: script }\n"),
    ("agents/model.yaml", "config:\n  provider: scrip\n"),
    (
        "agents/fallback.yaml",
        "config:\n  provider: script\n  fallbacks: [{ provider: script, model: big }]\n",
    ),
    ("agents/key.yaml", "config: { provider: keyless }\n"),
    ("agents/boxed.yaml", "config: { provider: script }\nsandbox: docker\n"),
    ("agents/stored.yaml", "config: { provider: script }\nsystem_prompt:\n  store: greeting@3\n"),
    (
        "agents/many.yaml",
        "tools: [read_fil, wat]\nsubagents: [typo, field, absent]\nconfig: { provider: scrip }\n\
             middleware: [{ name: tool_retry, tools: [fly] }]\n",
    ),
    (
        "agents/rule.yaml",
        "config: { provider: script }\nmiddleware: [{ name: tool_retry, tools: [fly] }]\n",
    ),
    ("agents/sub.yaml", "config: { provider: script }\nsubagents:\n  - helpr\n  - good\n"),
    (
        "agents/inline.yaml",
        "config: { provider: script }\nsubagents:\n  - name: in\n    config:\n      provider: script\n      model: smal\n",
    ),
    ("agents/tool.md", "---\ntools:\n  - read_fil\n---\nBe kind."),
    ("agents/prompt.yaml", "\nsystem_prompt: { file: gone }\n"),
    ("agents/field.yaml", "description: x\ntool: []\n"),
    ("agents/middleware.yaml", "middleware: [guardrail]\n"),
    ("agents/named.yaml", "config: { provider: script }\nmiddleware:\n  - pi\n"),
    (
        "agents/fallback2.yaml",
        "config: { provider: script }\nmiddleware:\n  - { name: model_fallback, models: [{ provider: scrip }] }\n",
    ),
    ("agents/pii.yaml", "middleware:\n  - { name: gardrail, at: request }\n"),
    ("agents/generic.yaml", "cli:\n  command: [sh]\n"),
    ("agents/well.yaml", "cli: { command: [sh], terminal: exit_zero }\n"),
    ("agents/missing.yaml", "cli:\n  command: [nothing-like-it]\n  program: claude\n"),
    (
        "agents/place.yaml",
        "cli:\n  command: [sh]\n  program: claude\n  working_dir: /no/such/folder\n",
    ),
];

/// The codes of parts that are missing.
const CODES: [&str; 10] = [
    "unknown_subagent",
    "wrong_mode",
    "unknown_provider",
    "unknown_model",
    "unknown_tool",
    "unknown_middleware",
    "missing_text",
    "sandbox_unavailable",
    "missing_folder",
    "no_terminal_rule",
];

/// Everything that cannot work is reported with its line and a suggestion, and files that can work are not.
#[test]
fn a_check_reports_everything_that_cannot_work() {
    let (folder, catalog) = catalog(WRONG);
    let config = "default: { provider: opnai }\nproviders:\n\
        - { id: script, kind: ollama, models: [small] }\n\
        - { id: keyless, kind: openai, key_env: NO_SUCH_KEY, models: [m] }\n";
    let config = abide_yaml::from_str(config).expect("the configuration is valid");
    let models = abide_models::Models::new(config, &abide_models::ConfigContext::of_process());
    let models = models.expect("the configuration is valid");
    let problems = catalog.check(&models, &abide_tools::Environment::of_process());
    // Each kind of part that can be missing is among them, and each such problem has its place and says what to do.
    for code in CODES {
        let of_code: Vec<_> = problems.iter().filter(|it| it.error.code() == code).collect();
        assert!(!of_code.is_empty(), "{code}");
        for problem in of_code {
            let is_said = problem.at.is_some() && problem.error.suggestion().is_some();
            assert!(is_said, "{code}: {problem}");
        }
    }
    let rendered: Vec<String> = problems
        .iter()
        .map(|problem| {
            let error = &problem.error;
            let hint = error.suggestion().map(|it| format!(" ({it})")).unwrap_or_default();
            let at = problem.to_string().replace(&folder.path().display().to_string(), "");
            let warning = if error.is_warning() { "warning " } else { "" };
            format!("{warning}{at} [{}]{hint}", error.code())
        })
        .collect();
    expect![[r#"
        /abide.yaml:2:24: models.default: unknown provider `opnai`; available: `script`, `keyless` [unknown_provider] (add it to models in abide.yaml, or name another)
        /agents/boxed.yaml:2:10: sandbox docker is not configured; this runtime has no sandbox [sandbox_unavailable] (configure it in abide.yaml, or remove sandbox from the definition)
        /agents/fallback.yaml:3:42: no enabled provider has the model `big`; available: `script/small` [unknown_model] (add it to models in abide.yaml, or name another)
        /agents/fallback2.yaml:3:50: unknown provider `scrip`; available: `script`, `keyless` [unknown_provider] (did you mean script?)
        /agents/field.yaml:2:1: unknown field `tool`, expected one of name, system_prompt, tools, blocked_tools, excluded_tools, skills, memory, subagents, interrupt_on, as_tool, as_handoff, middleware, pause, model, config, mode, description, hidden, allow, a2a_exposed, mcp_exposed, response_format, allow_empty_answers, profile, planning, supervisor, limits, sandbox, loop, cli, a2a [malformed_definition] (did you mean tools?)
        /agents/generic.yaml:2:13: the program "sh" has no known format, so no output of it counts as an answer [no_terminal_rule] (set terminal to exit_zero or to a line, parser to rules with terminal, or program to the program's format)
        /agents/inline.yaml:6:14: no enabled provider has the model `smal`; available: `script/small` [unknown_model] (did you mean small?)
        warning /agents/key.yaml:1:21: provider `keyless` cannot be used: the environment variable `NO_SUCH_KEY` is not set [key_missing] (set the environment variable before you start the program)
        /agents/many.yaml:1:9: unknown tool read_fil; available: files_read_file, files_write_file, read_file, write_file [unknown_tool] (did you mean read_file?)
        /agents/many.yaml:1:19: unknown tool wat; available: files_read_file, files_write_file, read_file, write_file [unknown_tool] (add the tool to abide.yaml, or remove its name)
        /agents/many.yaml:2:13: unknown subagent typo; available: helper [unknown_subagent] (create the agent with `mode: subagent`, or remove its name)
        /agents/many.yaml:2:26: unknown subagent absent; available: helper [unknown_subagent] (create the agent with `mode: subagent`, or remove its name)
        /agents/many.yaml:3:21: unknown provider `scrip`; available: `script`, `keyless` [unknown_provider] (did you mean script?)
        /agents/many.yaml:4:42: unknown tool fly; available: files_read_file, files_write_file, read_file, write_file [unknown_tool] (add the tool to abide.yaml, or remove its name)
        /agents/middleware.yaml:1:14: a guardrail has no `at` [malformed_definition]
        /agents/missing.yaml:2:13: there is no program "nothing-like-it" [program_not_found] (install it, or name it with its path)
        /agents/model.yaml:2:13: unknown provider `scrip`; available: `script`, `keyless` [unknown_provider] (did you mean script?)
        /agents/named.yaml:3:5: unknown middleware pi; available: guardrail, tool_security, tool_retry, model_fallback, pii, observability, streaming [unknown_middleware] (did you mean pii?)
        /agents/pii.yaml:2:13: unknown middleware `gardrail`; available: `guardrail`, `tool_security`, `tool_retry`, `model_fallback`, `pii`, `observability`, `streaming` [malformed_definition] (did you mean guardrail?)
        /agents/place.yaml:4:16: there is no folder /no/such/folder for the program [missing_folder] (create the folder)
        /agents/prompt.yaml:2:24: /prompts/gone.md cannot be read: No such file or directory (os error 2) [missing_text] (create the file in the agent folder, or correct its name)
        /agents/rule.yaml:2:42: unknown tool fly; available: files_read_file, files_write_file, read_file, write_file [unknown_tool] (add the tool to abide.yaml, or remove its name)
        /agents/stored.yaml:3:10: prompt greeting@3 cannot be read: this command has no database [missing_text] (name the database with --db or --url)
        /agents/sub.yaml:3:5: unknown subagent helpr; available: helper [unknown_subagent] (did you mean helper?)
        /agents/sub.yaml:4:5: agent good is primary and cannot be a subagent [wrong_mode] (set its mode to subagent or all)
        /agents/tool.md:3:5: unknown tool read_fil; available: files_read_file, files_write_file, read_file, write_file [unknown_tool] (did you mean read_file?)"#]].assert_eq(&rendered.join("\n"));
}

/// A secret in plain text was stored with the definition, and nothing said so. It is a warning: the agent works.
#[test]
fn a_check_warns_about_secrets_in_plain_text() {
    let (folder, catalog) = catalog(&[
        (
            "agents/coder.yaml",
            "cli:\n  command: [sh]\n  terminal: exit_zero\n  env:\n    MODE: fast\n    API_KEY: abcdef123456\n    \
             TOKEN: { env: TOKEN }\n",
        ),
        (
            "agents/remote.yaml",
            "a2a:\n  url: https://agent.example/a2a\n  headers:\n    authorization: Bearer 0123456789ab\n",
        ),
    ]);
    let models = abide_models::Models::new(
        abide_models::ModelsConfig::default(),
        &abide_models::ConfigContext::of_process(),
    );
    let models = models.expect("the configuration is valid");
    let problems = catalog.check(&models, &abide_tools::Environment::of_process());
    let found: Vec<String> = problems
        .iter()
        .filter(|problem| problem.error.code() == "literal_secret")
        .map(|problem| {
            assert!(problem.error.is_warning());
            let hint = problem.error.suggestion().unwrap_or_default();
            let at = problem.to_string().replace(&folder.path().display().to_string(), "");
            assert!(!at.contains("abcdef123456") && !at.contains("0123456789ab"));
            format!("{at} ({hint})")
        })
        .collect();
    expect![[r#"
        /agents/coder.yaml:6:5: cli.env.API_KEY is a secret in plain text (write `{env: NAME}` as the value, and set the environment variable NAME)
        /agents/remote.yaml:4:5: a2a.headers.authorization is a secret in plain text (write `{env: NAME}` as the value, and set the environment variable NAME)"#]]
    .assert_eq(&found.join("\n"));
}

/// An unknown provider in `model`, a cycle, a negative limit and an instruction file had no place.
#[test]
fn a_check_has_the_place_of_each_problem() {
    let (folder, catalog) = catalog(&[
        ("agents/cycle.yaml", "mode: all\nmodel: script/small\nsubagents: [cycle]\n"),
        ("agents/limit.yaml", "model: script/small\nlimits:\n  tokens: -1\n"),
        ("agents/memory.yaml", "model: script/small\nmemory: [notes.md]\n"),
        ("agents/provider.yaml", "model: scrip/small\n"),
        ("agents/shape.yaml", "description: x\nmodel: small\n"),
    ]);
    let config = "providers: [{ id: script, kind: ollama, models: [small] }]\n";
    let config = abide_yaml::from_str(config).expect("the configuration is valid");
    let models = abide_models::Models::new(config, &abide_models::ConfigContext::of_process());
    let models = models.expect("the configuration is valid");
    let problems = catalog.check(&models, &abide_tools::Environment::of_process());
    let below = folder.path().display().to_string();
    let rendered: Vec<String> =
        problems.iter().map(|problem| problem.to_string().replace(&below, "")).collect();
    expect![[r#"
        /agents/cycle.yaml:3:13: delegation cycle: cycle → cycle
        /agents/limit.yaml:3:3: limits.tokens is -1; it must be at least 1
        /agents/memory.yaml:2:10: /notes.md cannot be read: No such file or directory (os error 2)
        /agents/provider.yaml:1:8: unknown provider `scrip`; available: `script`
        /agents/shape.yaml:2:1: model is "small": write PROVIDER/MODEL"#]]
    .assert_eq(&rendered.join("\n"));
}

/// A parser by configuration that cannot work, and a name that no parser in Rust has.
#[test]
fn a_check_reports_parsers_that_cannot_work() {
    let (folder, catalog) = catalog(&[
        (
            "agents/rules.yaml",
            "cli:\n  command: [sh]\n  parser:\n    session: sid\n    terminal: { when: { /type: done } }\n",
        ),
        (
            "agents/rules2.yaml",
            "cli:\n  command: [sh]\n  parser:\n    terminl: { when: { /type: done } }\n",
        ),
        ("agents/rules3.yaml", "cli:\n  command: [sh]\n  parser:\n    terminal: { when: {} }\n"),
        ("agents/rules4.yaml", "cli:\n  command: [sh]\n  parser: { text: { text: /text } }\n"),
        ("agents/rules5.yaml", "cli:\n  command: [sh]\n  parser: mien\n"),
        ("agents/rules6.yaml", "cli:\n  command: [sh]\n  parser: other\n"),
        ("agents/mine.yaml", "cli: { command: [sh], parser: mine }\n"),
    ]);
    let catalog = catalog.parser("mine", || abide_programs::GenericParser);
    let config = "providers: [{ id: script, kind: ollama, models: [small] }]\n";
    let config = abide_yaml::from_str(config).expect("the configuration is valid");
    let models = abide_models::Models::new(config, &abide_models::ConfigContext::of_process());
    let models = models.expect("the configuration is valid");
    let problems = catalog.check(&models, &abide_tools::Environment::of_process());
    let rendered: Vec<String> = problems
        .iter()
        .map(|problem| {
            let hint = problem.error.suggestion().map(|it| format!(" ({it})")).unwrap_or_default();
            let at = problem.to_string().replace(&folder.path().display().to_string(), "");
            format!("{at} [{}]{hint}", problem.error.code())
        })
        .collect();
    expect![[r#"
        /agents/rules.yaml:4:14: `sid` is not a JSON pointer: write `/sid` [malformed_definition]
        /agents/rules2.yaml:4:5: unknown field `terminl`, expected one of session, text, thinking, tool_call, tool_result, usage, terminal, error [malformed_definition] (did you mean terminal?)
        /agents/rules3.yaml:4:5: the rule terminal has an empty when, so each line fits it [bad_parser] (docs/programs.md describes the rules of a parser)
        /agents/rules4.yaml:2:13: the parser has no rule terminal, so no output counts as an answer [no_terminal_rule] (set terminal to exit_zero or to a line, parser to rules with terminal, or program to the program's format)
        /agents/rules5.yaml:3:11: unknown parser mien; available: mine [unknown_parser] (Catalog::parser adds one in Rust)
        /agents/rules6.yaml:3:11: unknown parser other; available: mine [unknown_parser] (Catalog::parser adds one in Rust)"#]]
    .assert_eq(&rendered.join("\n"));
}

#[test]
fn a_changed_file_changes_the_signature() {
    let (folder, catalog) = catalog(&[("agents/a.yaml", "description: one")]);
    let before = catalog.signature();
    assert_eq!(catalog.signature(), before);
    std::fs::write(folder.path().join("agents/a.yaml"), "description: another")
        .expect("the file can be written");
    assert_ne!(catalog.signature(), before);
}
