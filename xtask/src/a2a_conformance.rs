//! `cargo xtask a2a-conformance`: the compatibility kit of A2A against the A2A server, on its three bindings: as it is published, and with
//! an id of its own for each message. Every failure must be in `tests/clients/a2a_tck_expected.txt` with its reason, or for the first run
//! in `a2a_tck_unmodified.txt`, and every test in these lists must fail.
//!
//! No registry has the kit, so a clone of this repository does not: then the command says so and does nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::command;

/// The archive of the kit, in the folder of `ABIDE_EXTERNAL_FIXTURES`.
const ARCHIVE: &str = "suites/a2a-tck-1.0-dev.tar.gz";

/// Runs the kit; fails if a test fails that is not expected to, or passes that is expected to fail.
pub(crate) fn run(root: &Path) -> Result<ExitCode, String> {
    let external = std::env::var_os("ABIDE_EXTERNAL_FIXTURES").unwrap_or_default();
    let archive = Path::new(&external).join(ARCHIVE);
    if !archive.is_file() {
        println!("skipped: ABIDE_EXTERNAL_FIXTURES has no {ARCHIVE}");
        return Ok(ExitCode::SUCCESS);
    }
    let target = command::target(root);
    let folder = target.join("a2a_conformance");
    let kit = folder.join("a2a-tck");
    if !kit.is_dir() {
        fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let mut unpack = Command::new("tar");
        unpack.arg("xzf").arg(&archive).arg("-C").arg(&folder);
        command::succeed(&mut unpack, "tar")?;
    }
    // The kit needs Python 3.11.
    let python = command::virtual_environment(&folder.join("venv"))?.join("python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--editable"]).arg(&kit);
    install.arg("--editable").arg(root.join("client-sdk/python"));
    command::succeed(&mut install, "pip install")?;
    let mut build = command::cargo(root);
    build.args(["build", "--quiet", "--workspace", "--bin", "abide", "--example", "worker"]);
    command::succeed(&mut build, "cargo build")?;
    let mut tests = Command::new(&python);
    tests.arg(root.join("tests/clients/a2a_tck.py")).arg(&kit);
    tests.env("ABIDE_BINARY", target.join("debug/abide"));
    let status = tests.status().map_err(|why| format!("cannot run the kit: {why}"))?;
    Ok(command::exit_code(status.success()))
}
