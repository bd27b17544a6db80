//! A small project with a defect, and the folder of agents in it, whose model answers from a script.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as JsonValue;
use tempfile::TempDir;

use crate::program::{ExitedProcess, Process, abide};

/// The file of the agents.
const FILE: &str = ".abide/agents.db";

/// A folder with `add.sh`, which subtracts, its test `test.sh`, and `.abide`.
pub(crate) struct Project {
    folder: TempDir,
}

impl Project {
    /// With the agents of `abide agent init`.
    pub(crate) fn init(answers: &str) -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        project.run(&["agent", "init", "--provider", "script"]).good();
        project.with(answers)
    }

    /// With the native agents and this configuration.
    pub(crate) fn configured(config: &str, answers: &str) -> Project {
        let project = Project { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(project.path(".abide/agents")).unwrap();
        fs::write(project.path(".abide/abide.yaml"), config).unwrap();
        project.with(answers)
    }

    fn with(self, answers: &str) -> Project {
        fs::write(self.path(".abide/answers.yaml"), answers).unwrap();
        fs::write(self.path("add.sh"), "expr $1 - $2\n").unwrap();
        fs::write(self.path("test.sh"), "test $(sh add.sh 2 2) = 4 && echo passed\n").unwrap();
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a command in the folder, with a secret in its environment.
    pub(crate) fn spawn(&self, args: &[&str]) -> Process {
        let mut command = abide();
        command.current_dir(self.folder()).args(args).env("OPENAI_API_KEY", "s3cret-key");
        Process::spawn(&mut command)
    }

    pub(crate) fn run(&self, args: &[&str]) -> ExitedProcess {
        self.spawn(args).ended()
    }

    /// Runs a command on the file of the agents.
    pub(crate) fn spawn_on_file(&self, args: &[&str]) -> Process {
        self.spawn(&[&["--db", FILE], args].concat())
    }

    pub(crate) fn run_on_file(&self, args: &[&str]) -> ExitedProcess {
        self.spawn_on_file(args).ended()
    }

    pub(crate) fn rows(&self, sql: &str) -> JsonValue {
        self.run_on_file(&["sql", "--json", sql]).json()["rows"].take()
    }

    /// The files that the calls of all sessions touched: the query of docs/sandboxes.md.
    pub(crate) fn touched_files(&self) -> Vec<String> {
        let sql = "SELECT tool_name, file.value ->> '$.action', file.value ->> '$.path' \
                   FROM tool_calls, json_each(tool_calls.result, '$.content.files') AS file \
                   ORDER BY tool_calls.created_at, file.key";
        let rows = self.rows(sql);
        let lines = rows.as_array().unwrap().iter().map(|row| {
            let cells = row.as_array().unwrap().iter().map(|cell| cell.as_str().unwrap());
            cells.collect::<Vec<_>>().join(" ")
        });
        lines.collect()
    }
}
