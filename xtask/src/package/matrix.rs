//! `cargo xtask matrix`: runs the packed SDKs of each release against the packed server of each release that
//! `docs/upgrade.md` says they work with.
//!
//! The table of the page is the only list. The artefacts of this version are those of `cargo xtask package`, and those of
//! an earlier version its files as they were published.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use tempfile::TempDir;

use super::binary::Platform;
use super::check::{self, Server};
use super::release::{describe, metadata, workspace_version};
use crate::command::{self, StepResult};

/// The arguments.
pub(crate) const TAKES: &str = "[--releases FOLDER]   with a folder for each earlier version, such as 0.1.0, that has its artefacts";

/// The page with the versions, and the lines around its table.
const PAGE: &str = "docs/upgrade.md";
const BEGINS: &str = "<!-- versions: run by cargo xtask matrix -->";
const ENDS: &str = "<!-- end of versions -->";

/// The programs of an application.
const NODE: &str = include_str!("../../../package/matrix/client.mjs");
const PYTHON: &str = include_str!("../../../package/matrix/client.py");

/// What a program prints that has worked.
const PRINTED: &str = "hello 42\n";

/// A server, and an SDK that must work with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) server: String,
    pub(super) sdk: String,
}

/// Runs all pairs.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let releases = match words {
        [] => command::target(root).join("releases"),
        [option, folder] if option == "--releases" => PathBuf::from(folder),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let page = root.join(PAGE);
    let pairs = read_pairs(&fs::read_to_string(&page).map_err(describe(&page))?)?;
    let current = workspace_version(&metadata(root)?)?;
    if !pairs.iter().any(|pair| pair.server == current && pair.sdk == current) {
        return Err(format!("the table of {PAGE} has no line for {current}, this version"));
    }
    let artefacts = |version: &str| {
        if version == current {
            command::target(root).join("package")
        } else {
            releases.join(version)
        }
    };
    let mut results = Vec::new();
    for Pair { server, sdk } in &pairs {
        println!("running   the SDKs {sdk} with the server {server}");
        let start = Instant::now();
        let ran = run_pair(&artefacts(server), server, &artefacts(sdk), sdk);
        if let Err(why) = &ran {
            println!("          {why}");
        }
        let name = format!("the SDKs {sdk} work with the server {server}");
        results.push(StepResult { name, good: ran.is_ok(), took: start.elapsed() });
    }
    Ok(command::exit_code(command::print_results(&results)))
}

/// Reads the table: in each line the version of a server, and those of the SDKs that work with it.
pub(super) fn read_pairs(page: &str) -> Result<Vec<Pair>, String> {
    let table = page.split_once(BEGINS).and_then(|(_, rest)| rest.split_once(ENDS));
    let (table, _) = table.ok_or_else(|| format!("{PAGE} has no table after {BEGINS}"))?;
    let mut pairs = Vec::new();
    for line in table.lines().filter(|line| line.starts_with('|')) {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (Some(server), Some(sdks)) = (cells.next(), cells.next()) else { continue };
        // The head of the table has no version.
        if !server.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        for sdk in sdks.split(',').map(str::trim) {
            pairs.push(Pair { server: server.to_owned(), sdk: sdk.to_owned() });
        }
    }
    if pairs.is_empty() { Err(format!("the table of {PAGE} has no version")) } else { Ok(pairs) }
}

/// Starts a server, and runs the program of each SDK against it.
fn run_pair(
    server_artefacts: &Path,
    server_version: &str,
    sdk_artefacts: &Path,
    sdk_version: &str,
) -> Result<(), String> {
    let folder = check::empty_folder()?;
    let program = unpack_program(server_artefacts, server_version, &folder)?;
    let db = folder.path().join("matrix.db");
    let mut serve = Command::new(program);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--json", "--db"]).arg(&db);
    let mut server = Server::start(serve.current_dir(folder.path()))?;
    let url = server.url();

    // The command line is a program of the Rust SDK.
    let folder = check::empty_folder()?;
    let client = unpack_program(sdk_artefacts, sdk_version, &folder)?;
    let call = ["call", "create_session", "agent=support", "id=rust", "--url", &url];
    check::output(Command::new(&client).args(call).current_dir(folder.path()))?;
    let sql = ["sql", "SELECT id FROM sessions WHERE id = 'rust'", "--json", "--url", &url];
    let rows = check::output(Command::new(&client).args(sql).current_dir(folder.path()))?;
    if !rows.contains("[[\"rust\"]]") {
        return Err(format!("the Rust SDK printed {rows:?}"));
    }
    run_node(sdk_artefacts, sdk_version, &url)?;
    run_python(sdk_artefacts, sdk_version, &url)?;
    server.stop(false)
}

fn run_node(artefacts: &Path, version: &str, url: &str) -> Result<(), String> {
    let package = find(artefacts, "", &format!("-client-{version}.tgz"))?;
    let folder = check::empty_folder()?;
    let module = folder.path().join("node_modules/@abide/client");
    fs::create_dir_all(&module).map_err(describe(&module))?;
    unpack(&package, &module)?;
    let program = folder.path().join("client.mjs");
    fs::write(&program, NODE).map_err(describe(&program))?;
    expect("TypeScript", Command::new("node").arg(&program).args([url, "node"]))
}

fn run_python(artefacts: &Path, version: &str, url: &str) -> Result<(), String> {
    let wheel = find(artefacts, "", &format!("_client-{version}-py3-none-any.whl"))?;
    let folder = check::empty_folder()?;
    let bin = command::virtual_environment(&folder.path().join("venv"))?;
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).arg(wheel);
    check::output(&mut pip)?;
    let program = folder.path().join("client.py");
    fs::write(&program, PYTHON).map_err(describe(&program))?;
    let mut python = Command::new(bin.join("python"));
    expect("Python", python.env_remove("PYTHONPATH").arg(&program).args([url, "python"]))
}

/// Runs the program of an SDK.
fn expect(sdk: &str, program: &mut Command) -> Result<(), String> {
    let printed = check::output(program).map_err(|why| format!("the {sdk} SDK: {why}"))?;
    if printed == PRINTED { Ok(()) } else { Err(format!("the {sdk} SDK printed {printed:?}")) }
}

/// Unpacks the program of the tarball for this machine. Returns its path.
fn unpack_program(artefacts: &Path, version: &str, folder: &TempDir) -> Result<PathBuf, String> {
    let triple = Platform::find(None)?.triple;
    let tarball = find(artefacts, &format!("abide-{version}-"), &format!("{triple}.tar.gz"))?;
    unpack(&tarball, folder.path())?;
    Ok(folder.path().join("abide"))
}

/// Unpacks an archive without its outermost folder.
fn unpack(archive: &Path, into: &Path) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(into).arg("--strip-components=1");
    check::output(&mut tar).map(drop)
}

/// Returns the artefact whose name begins and ends like this.
fn find(artefacts: &Path, begins: &str, ends: &str) -> Result<PathBuf, String> {
    let missing = || {
        format!(
            "{} has no file {begins}*{ends}: run `cargo xtask package` for this version, and download the files of a release",
            artefacts.display()
        )
    };
    for entry in fs::read_dir(artefacts).map_err(|_| missing())? {
        let entry = entry.map_err(describe(artefacts))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(begins) && name.ends_with(ends) {
            return Ok(entry.path());
        }
    }
    Err(missing())
}
