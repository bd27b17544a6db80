//! Defaults, and parsing of configurations.

use expect_test::{Expect, expect};

use super::*;

/// A configuration as JSON with all defaults, or the error.
fn check(declaration: &str, expected: Expect) {
    let output = match serde_json::from_str::<CliConfig>(declaration) {
        Ok(config) => serde_json::to_string(&config).expect("a configuration is JSON"),
        Err(why) => why.to_string(),
    };
    expected.assert_eq(&output);
}

#[test]
fn cli_config_command_is_required() {
    check("{}", expect!["missing field `command` at line 1 column 2"]);
}

#[test]
fn cli_config_output_format_defaults_to_stream_json() {
    assert_eq!(CliConfig::new(["claude"]).output_format, OutputFormat::StreamJson);
    let named = serde_json::to_string(&OutputFormat::StreamJson).expect("it is JSON");
    assert_eq!(named, "\"stream-json\"");
}

#[test]
fn cli_config_timeout_seconds_defaults_to_300() {
    assert_eq!(CliConfig::new(["claude"]).timeout, Duration::from_secs_f64(300.0));
}

#[test]
fn cli_config_max_output_bytes_defaults_to_4_000_000() {
    let config = CliConfig::new(["claude"]);
    assert_eq!((config.max_output_bytes, config.max_line_bytes), (4_000_000, 4_000_000));
}

#[test]
fn cli_config_env_defaults_to_nothing() {
    let config = CliConfig::new(["claude"]);
    assert!(config.env.is_empty());
    assert_eq!(config.inherit_env, InheritEnv::Allowlist);
}

#[test]
fn a_configuration_in_a_file_has_the_same_defaults() {
    let read: CliConfig =
        serde_json::from_str(r#"{"command": ["claude"]}"#).expect("the configuration is valid");
    assert_eq!(read, CliConfig::new(["claude"]));
}

#[test]
fn a_configuration_uses_the_specified_field_names() {
    check(
        r#"{"command": ["x", "-"], "timeout_seconds": 0.5, "max_output_bytes": 9, "env": {"A": "b"},
            "inherit_env": "all", "program": "claude", "input_format": "stream-json",
            "terminal": {"line": {"pointer": "/type", "equals": "done", "text": "/text"}}}"#,
        expect![
            r#"
                {"command":["x","-"],"output_format":"stream-json","input_format":"stream-json","timeout_seconds":0.5,"grace_seconds":5.0,"max_output_bytes":9,"max_line_bytes":4000000,"env":{"A":"b"},"inherit_env":"all","env_allowlist":[],"working_dir":null,"program":"claude","terminal":{"line":{"pointer":"/type","equals":"done","text":"/text"}},"session":null,"resume_args":null,"extra_args":[]}"#
        ],
    );
}

#[test]
fn errors_in_a_configuration_are_reported() {
    check(
        r#"{"command": ["x"], "timeout": 3}"#,
        expect![
            "unknown field `timeout`, expected one of `command`, `output_format`, `input_format`, `timeout_seconds`, `grace_seconds`, `max_output_bytes`, `max_line_bytes`, `env`, `inherit_env`, `env_allowlist`, `working_dir`, `program`, `parser`, `terminal`, `session`, `resume_args`, `extra_args` at line 1 column 28"
        ],
    );
    check(
        r#"{"command": ["x"], "timeout_seconds": -1}"#,
        expect!["-1 is not a valid number of seconds at line 1 column 41"],
    );
}

#[test]
fn debug_output_has_no_secrets() {
    let mut config = CliConfig::new(["claude"]);
    config.env.insert("KEY".to_owned(), "sk-secret".to_owned().into());
    let shown = format!("{config:?}");
    assert!(shown.contains("KEY") && !shown.contains("sk-secret"), "{shown}");
}
