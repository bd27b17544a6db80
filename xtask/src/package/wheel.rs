//! The wheels: the Python client with and without the engine, and the wheel whose command is the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::binary::install;
use super::check::{self, Installed};
use super::release::{Release, describe};
use crate::tidy::list_files;

/// The folder of the client, and the name that it has in this repository.
const CLIENT: &str = "client-sdk/python";
const CLIENT_NAME: &str = "abide-client";

/// The files that tell a user this name.
const NAMING: [&str; 4] =
    ["README.md", "pyproject.toml", "src/abide/adapters/__init__.py", "src/abide/extras.py"];

/// What the manifest of the client has in addition if the wheel contains the program.
const WITH_DOCUMENTS: [(&str, &str); 2] = [
    (
        "license = \"MIT OR Apache-2.0\"\n",
        "license = \"MIT OR Apache-2.0\"\nlicense-files = [\"LICENSE-*\", \"THIRD-PARTY-LICENSES.txt\"]\n",
    ),
    (
        "packages = [\"src/abide\"]\n",
        "packages = [\"src/abide\"]\nsbom-files = [\"abide.cdx.json\"]\n",
    ),
];

/// The folder of the wheel whose command is the program.
const PROGRAM: &str = "package/python";

/// The packages of PyPI that build wheels.
const BUILDERS: [&str; 2] = ["build==1.6.1", "hatchling==1.33.0"];

/// Builds them.
pub(super) fn pack(release: &Release) -> Result<Vec<PathBuf>, String> {
    if release.platform.npm.is_none() {
        return Ok(Vec::new());
    }
    let python = install(&release.root, &BUILDERS)?.join("python");
    let client = check::empty_folder()?;
    copy_tracked(&release.root, CLIENT, client.path())?;
    let name = format!("{}-client", release.name);
    for file in NAMING {
        replace(&client.path().join(file), &[(CLIENT_NAME, name.as_str())])?;
    }

    let program = check::empty_folder()?;
    copy_tracked(&release.root, PROGRAM, program.path())?;
    let hook = program.path().join("hatch_build.py");
    let original = release.root.join(CLIENT).join("hatch_build.py");
    fs::copy(&original, &hook).map_err(describe(&original))?;
    release.write_documents(program.path())?;
    let names = [("\"NAME\"", quoted(&release.name)), ("\"VERSION\"", quoted(&release.version))];
    let names = names.each_ref().map(|(from, to)| (*from, to.as_str()));
    replace(&program.path().join("pyproject.toml"), &names)?;

    build(release, &python, client.path(), false)?;
    release.write_documents(client.path())?;
    replace(&client.path().join("pyproject.toml"), &WITH_DOCUMENTS)?;
    build(release, &python, client.path(), true)?;
    build(release, &python, program.path(), true)?;
    let wheels = wheels(&release.out)?;
    for wheel in &wheels {
        check_tag(release, wheel)?;
    }
    Ok(wheels)
}

/// Installs them into new environments.
pub(super) fn check(release: &Release, _files: &[PathBuf]) -> Result<Option<Duration>, String> {
    let name = release.name.as_str();
    let folder = check::empty_folder()?;
    let start = Instant::now();
    let bin = crate::command::virtual_environment(&folder.path().join("program"))?;
    pip_install(release, &bin, &["--no-index", name])?;
    let installed = Installed::new(bin.join("abide"), folder.path());
    let approved = check::exercise(release, &installed, start)?;
    // The command with the name of the package starts the other one.
    check::output(Command::new(bin.join(name)).arg("--version"))?;

    let bin = crate::command::virtual_environment(&folder.path().join("client"))?;
    let client = format!("{name}-client");
    pip_install(release, &bin, &[client.as_str()])?;
    let program = "from abide.engine import find_binary; print(find_binary())";
    let mut python = Command::new(bin.join("python"));
    python.args(["-c", program]).env_remove("ABIDE_BINARY").current_dir(folder.path());
    let engine = check::output(&mut python)?;
    let version = check::output(Command::new(engine.trim()).arg("--version"))?;
    if version != format!("abide {}\n", release.version) {
        return Err(format!("the engine of the client printed {version:?}"));
    }
    Ok(approved)
}

fn pip_install(release: &Release, bin: &Path, what: &[&str]) -> Result<(), String> {
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--find-links"]);
    pip.arg(&release.out).args(what);
    check::output(&mut pip).map(drop)
}

/// Builds a wheel of a folder, with or without the program.
fn build(release: &Release, python: &Path, folder: &Path, has_program: bool) -> Result<(), String> {
    let mut build = Command::new(python);
    build.args(["-m", "build", "--wheel", "--no-isolation", "--outdir"]).arg(&release.out);
    build.arg(folder).env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    build.env_remove("ABIDE_BINARY").env_remove("ABIDE_PLATFORM_TAG");
    if has_program {
        build.env("ABIDE_BINARY", &release.binary);
        if let Some(tag) = release.platform.wheel {
            build.env("ABIDE_PLATFORM_TAG", tag);
        }
    }
    check::output(&mut build).map(drop)
}

/// The wheels of a folder.
fn wheels(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder).map_err(describe(folder))? {
        let path = entry.map_err(describe(folder))?.path();
        if path.extension().is_some_and(|end| end == "whl") {
            wheels.push(path);
        }
    }
    wheels.sort();
    Ok(wheels)
}

/// Refuses a wheel that needs a newer glibc than the other packages say.
fn check_tag(release: &Release, wheel: &Path) -> Result<(), String> {
    let file = wheel.file_name().unwrap_or_default().to_string_lossy();
    let Some((_, tag)) = file.split_once("-manylinux_2_") else { return Ok(()) };
    let minor: u32 = tag.split('_').next().and_then(|it| it.parse().ok()).unwrap_or(u32::MAX);
    let most = release.glibc_minor;
    if minor <= most {
        Ok(())
    } else {
        Err(format!("{file}: the program needs a newer glibc than 2.{most}"))
    }
}

/// Copies the files of a folder that are or would be committed.
fn copy_tracked(root: &Path, folder: &str, to: &Path) -> Result<(), String> {
    for path in list_files(root)? {
        let Some(inner) = path.strip_prefix(folder).and_then(|it| it.strip_prefix('/')) else {
            continue;
        };
        let target = to.join(inner);
        let parent = target.parent().unwrap_or(to);
        fs::create_dir_all(parent).map_err(describe(parent))?;
        fs::copy(root.join(&path), &target).map_err(describe(&target))?;
    }
    Ok(())
}

/// Replaces texts of a file, each of which it has.
fn replace(file: &Path, texts: &[(&str, &str)]) -> Result<(), String> {
    let mut text = fs::read_to_string(file).map_err(describe(file))?;
    for (from, to) in texts {
        if !text.contains(from) {
            return Err(format!("{} does not contain {from}", file.display()));
        }
        text = text.replace(from, to);
    }
    fs::write(file, text).map_err(describe(file))
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}
