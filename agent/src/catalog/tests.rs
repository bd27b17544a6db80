//! Reading a folder of definitions.

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
        let run = |_: Nothing, _: ToolContext| async { Ok::<_, String>("done") };
        let function = Function::new(name, "Does it.", run);
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
    let told: Vec<(&str, Vec<&str>, bool)> = definitions
        .iter()
        .map(|it| (it.name.as_str(), it.tools.iter().map(String::as_str).collect(), it.native))
        .collect();
    assert_eq!(
        told,
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
    assert_eq!(names, ["default", "good", "hitl_test", "readonly"]);
    assert!(!definitions[0].native, "a file overrides the native agent of the same name");
    let told: Vec<(String, &str)> = problems
        .iter()
        .map(|it| {
            (
                it.path.strip_prefix(folder.path()).expect("below").display().to_string(),
                it.error.code(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("agents/broken.yaml".to_owned(), "malformed_definition"),
            ("agents/twice.yaml".to_owned(), "contradiction"),
            ("agents/unknown.yaml".to_owned(), "unknown_tool")
        ]
    );
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
