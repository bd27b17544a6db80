//! `cargo xtask book`: the pages as a book, built by mdBook, with every link of the result checked.
//!
//! The pages are written for GitHub: some are in the root, the others in `docs/`. mdBook needs one folder, so they
//! are copied into `target/book/src`, and their links are changed. mdBook itself is built once, into
//! `target/mdbook`, unless it is on the path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::tidy;

/// The version to build.
const VERSION: &str = "0.5.4";

/// The folder of the copied pages, and the folder of the book; `book.toml` has the same.
const SOURCE: &str = "target/book/src";
const BUILT: &str = "target/book/html";

/// Builds the book, and checks the links of its pages.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let mdbook = mdbook(root)?;
    stage(root).map_err(|why| format!("cannot copy the pages to {SOURCE}: {why}"))?;
    let mut build = Command::new(&mdbook);
    build.arg("build").current_dir(root).stdin(Stdio::null());
    crate::command::succeed(&mut build, "mdbook")?;
    let links_are_good = tidy::check_links(root, &[BUILT])?;
    println!("book: {BUILT}/index.html");
    Ok(crate::command::exit_code(links_are_good))
}

/// The mdBook on the path, or our own, which is built if it is missing.
fn mdbook(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join("target/mdbook");
    for program in [PathBuf::from("mdbook"), folder.join("bin/mdbook")] {
        if is_installed(&program) {
            return Ok(program);
        }
    }
    println!("building  mdbook {VERSION}, once: about a minute");
    let mut cargo = crate::command::cargo(root);
    cargo.args(["install", "mdbook", "--version", VERSION, "--locked", "--no-default-features"]);
    // Not optimised: the book is small.
    cargo.arg("--debug");
    let status = cargo.arg("--root").arg(&folder).status();
    if status.map_err(|why| format!("cannot run cargo install: {why}"))?.success() {
        Ok(folder.join("bin/mdbook"))
    } else {
        Err("cargo install mdbook failed".to_owned())
    }
}

fn is_installed(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Copies the pages and their pictures into one folder.
fn stage(root: &Path) -> io::Result<()> {
    let to = root.join(SOURCE);
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir_all(&to)?;
    for folder in [root.to_owned(), root.join("docs")] {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let shown = Path::new(&name).extension().is_some_and(|end| end == "svg");
            if Path::new(&name).extension().is_some_and(|end| end == "md") {
                // mdBook would rename the README, but not the links to it.
                let name = if name == "README.md" { "index.md".into() } else { name };
                let text = fs::read_to_string(entry.path())?;
                let text = text.replace("](docs/", "](").replace("](../", "](");
                fs::write(to.join(name), text.replace("](README.md", "](index.md"))?;
            } else if shown || name.to_string_lossy().starts_with("LICENSE") {
                fs::copy(entry.path(), to.join(name))?;
            }
        }
    }
    Ok(())
}
