//! The editor of the user, for a text that is too long for a line.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use tokio::process::Command;

/// The variables that name the editor, the first one that is set, and the editor if none is. `VISUAL` comes first, as for git:
/// `EDITOR` may need no terminal.
const VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
const DEFAULT: &str = "vi";

/// What became of a text in an editor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Edited {
    Text(String),
    /// Why there is no text.
    Failed(String),
}

/// Opens a text of JSON in the editor, and waits until the editor ends. The file is readable by this user only, and is removed.
pub(super) async fn edit(text: &str) -> Edited {
    let command = editor_command();
    match edit_with(&command, text).await {
        Ok(edited) => edited,
        Err(why) => Edited::Failed(format!("the editor '{command}' cannot be used: {why}")),
    }
}

/// The command of the editor. It can have arguments, as for git.
fn editor_command() -> String {
    VARIABLES
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|command| !command.trim().is_empty())
        .unwrap_or_else(|| DEFAULT.to_owned())
}

async fn edit_with(command: &str, text: &str) -> io::Result<Edited> {
    let mut file = tempfile::Builder::new().prefix("abide-").suffix(".json").tempfile()?;
    file.write_all(text.as_bytes())?;
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("{command} \"$1\""))
        .arg("sh")
        .arg(file.path())
        .stdout(terminal_output()?)
        .status()
        .await?;
    if !status.success() {
        return Ok(Edited::Failed(format!("the editor '{command}' {}", describe_exit(status))));
    }
    // By its name: many editors write another file in place of this one.
    fs::read_to_string(file.path()).map(Edited::Text)
}

/// The terminal as the output of the editor: stdout can be a file.
fn terminal_output() -> io::Result<Stdio> {
    if io::stdout().is_terminal() {
        return Ok(Stdio::inherit());
    }
    Ok(io::stderr().as_fd().try_clone_to_owned()?.into())
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(127), _) => "was not found".to_owned(),
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn edited(command: &str) -> Edited {
        edit_with(command, r#"{"a":1}"#).await.expect("it starts")
    }

    #[tokio::test]
    async fn the_text_of_the_file_counts_and_an_editor_that_fails_leaves_it() {
        let text = |text: &str| Edited::Text(text.to_owned());
        let failed = |why: &str| Edited::Failed(why.to_owned());
        assert_eq!(edited("true").await, text(r#"{"a":1}"#));
        assert_eq!(edited("printf '{}' >").await, text("{}"));
        assert_eq!(edited("f() { rm $1; printf 2 > $1; }; f").await, text("2"));
        assert_eq!(
            edited("f() { printf 2 > $1; exit 3; }; f").await,
            failed("the editor 'f() { printf 2 > $1; exit 3; }; f' ended with exit code 3")
        );
        assert_eq!(edited("no-editor-x").await, failed("the editor 'no-editor-x' was not found"));
        assert_eq!(
            edited("kill -9 $$; :").await,
            failed("the editor 'kill -9 $$; :' was ended by signal 9")
        );
    }
}
