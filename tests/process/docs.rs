//! Runs the command blocks of the README and of `docs/` as written.
//!
//! A page runs from top to bottom in an empty folder, each block as one script of `sh -e`. The words after `sh`
//! are:
//!
//! | block | |
//! |---|---|
//! | `sh` | succeeds |
//! | `sh fails` | its last command fails |
//! | `sh background` | one command that runs until the page ends; after `abide serve` the next block waits until it listens |
//! | `sh no-run` | is not run: it needs a key, a network, another terminal, or minutes |
//!
//! A block `text` after a block contains its output, stdout and stderr; `…` matches any text on that line.
//!
//! `docs/operation.md` is for root on a machine of its own: `cargo xtask operation` runs it.
//!
//! Two things differ from a user's shell: `abide` is the binary under test, and a server uses a free port.

mod blocks;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::program::{Process, abide, program};
use blocks::{Block, Kind};

/// The page whose commands need root and an installed package: `cargo xtask operation` runs them.
const OPERATION: &str = "docs/operation.md";

/// The address of a server without `--listen`, as pages write it.
const USUAL: &str = "127.0.0.1:7341";

/// The folder of a page, and the processes that it has started.
struct Reader {
    folder: TempDir,
    programs: TempDir,
    /// Where the server of the page listens.
    address: String,
    background: Vec<Process>,
}

impl Reader {
    fn new() -> Reader {
        let programs = tempfile::tempdir().unwrap();
        let abide = programs.path().join("abide");
        let mut shim = File::create(&abide).unwrap();
        let real = program().display();
        write!(
            shim,
            "#!/bin/sh\n\
             if [ \"$1\" = serve ] || [ \"$1\" = dev ]; then command=$1; shift; \
               exec '{real}' $command --listen 127.0.0.1:0 \"$@\"; fi\n\
             exec '{real}' \"$@\"\n"
        )
        .unwrap();
        fs::set_permissions(&abide, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        Reader { folder, programs, address: USUAL.to_owned(), background: Vec::new() }
    }

    /// A shell in the folder of the page. Variables that it sets and the folder persist, as in one terminal.
    fn shell(&self, text: &str) -> Command {
        let text = text.replace(USUAL, &self.address).replace("localhost:7341", &self.address);
        let kept = self.programs.path().join("variables");
        let kept = kept.display();
        let script = format!(
            "set -a\n[ ! -e {kept} ] || . {kept}\ncd \"${{READER_FOLDER:-.}}\"\n\
             trap 'READER_FOLDER=$PWD; export -p > {kept}' EXIT\n\
             ABIDE_URL=http://{}\n{text}",
            self.address
        );
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &script]).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, _) in abide().get_envs().filter(|(_, value)| value.is_none()) {
            shell.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap();
        shell.env("PATH", format!("{}:{path}", self.programs.path().display()));
        shell
    }

    /// Runs a block; returns its output.
    fn run(&mut self, block: &Block, place: &str) -> String {
        if block.kind == Kind::Background {
            // `exec`, so that killing the process at the end kills the command.
            let process = Process::spawn(&mut self.shell(&format!("exec {}", block.text)));
            let mut first = String::new();
            if block.text.starts_with("abide serve") || block.text.starts_with("abide dev") {
                first = process.line();
                let (_, address) = first.split_once("://").expect("it says where it listens");
                address.clone_into(&mut self.address);
            }
            self.background.push(process);
            return first;
        }
        let ended = Process::spawn(&mut self.shell(&format!("exec 2>&1\n{}", block.text))).ended();
        let succeeds = block.kind == Kind::Runs;
        assert_eq!(ended.code == Some(0), succeeds, "{place}: {:?}\n{}", ended.code, ended.stdout);
        ended.stdout
    }
}

#[track_caller]
fn read_blocks(name: &str, page: &str) -> Vec<Block> {
    blocks::read(name, page).unwrap_or_else(|why| panic!("{why}"))
}

/// Runs a page; returns the number of blocks.
fn run_page(name: &str, page: &str) -> usize {
    let mut reader = Reader::new();
    let mut ran = 0;
    let mut printed = None;
    for block in read_blocks(name, page) {
        let place = format!("{name}:{}", block.line);
        match block.kind {
            Kind::Runs | Kind::Fails | Kind::Background => {
                printed = Some(reader.run(&block, &place));
                ran += 1;
            }
            Kind::Output => {
                if let Some(printed) = printed.take() {
                    let difference = blocks::find_difference(&printed, &block.text);
                    assert_eq!(difference, None, "{place}");
                }
            }
            Kind::NotRun | Kind::Other | Kind::Before => printed = None,
        }
    }
    for process in &mut reader.background {
        assert!(process.is_running(), "{name}: a command in the background has ended");
    }
    ran
}

fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.extend(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

#[test]
fn the_commands_of_the_pages_run_as_written() {
    let pages = pages().into_iter().filter(|(name, _)| name != OPERATION);
    let run = pages.map(|(name, page)| (run_page(&name, &page), name));
    let ran: Vec<(usize, String)> = run.filter(|(blocks, _)| *blocks > 0).collect();
    assert!(
        ran.iter().any(|(_, name)| name == "README.md"),
        "the README has nothing to run: {ran:?}"
    );
    assert!(ran.iter().map(|(blocks, _)| blocks).sum::<usize>() > 15, "{ran:?}");
}

/// Users copy whole blocks, so blocks have no prompts.
#[test]
fn no_block_has_a_prompt() {
    for (name, page) in pages() {
        for block in read_blocks(&name, &page)
            .iter()
            .filter(|block| block.kind != Kind::Output && block.kind != Kind::Other)
        {
            let prompt = block.text.lines().find(|line| line.starts_with("$ "));
            assert_eq!(prompt, None, "{name}:{}", block.line);
        }
    }
}

#[test]
fn a_page_that_is_wrong_is_found() {
    let is_wrong = |page: &str| std::panic::catch_unwind(|| run_page("page", page)).is_err();
    assert!(!is_wrong("```sh\nA=1\n```\n```sh\necho $A b\n```\n```text\n1 …\n```\n"));
    assert!(is_wrong("```sh\nfalse\n```\n"));
    assert!(is_wrong("```sh fails\ntrue\n```\n"));
    assert!(is_wrong("```sh\necho a\n```\n```text\nb\n```\n"));
    assert!(is_wrong("```bash\ntrue\n```\n"));
    assert!(is_wrong("```sh\ntrue\n"));
    assert!(!is_wrong("```sh no-run\nfalse\n```\n"));
}
