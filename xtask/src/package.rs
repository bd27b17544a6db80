//! `cargo xtask package`: builds the program once, and packs every artefact of a release from it into `target/package`.
//! `--binary` packs a program that exists, and compiles nothing.
//!
//! Nothing is published; `.github/workflows/release.yml` does that. Two runs of one commit write the same bytes, as far as
//! npm, hatchling and mmdebstrap do. `--check` installs each artefact as a new user does, and uses it.

mod archive;
mod binary;
mod check;
mod dependencies;
mod image;
pub(crate) mod matrix;
mod npm;
pub(crate) mod operation;
mod release;
mod tarball;
mod wheel;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::command::{self, StepResult};
use binary::Platform;
use release::{Release, describe};

pub(crate) use release::{distribution_name, workspace_version};

/// The arguments.
pub(crate) const TAKES: &str = "[--check] [--only ARTEFACT] [--target TRIPLE] [--binary FILE]   use each artefact; \
                                one of tarball, deb, npm, wheels, image, agents-image; the platform; a program that exists";

/// An artefact, or several that one tool writes.
struct Artefact {
    name: &'static str,
    /// Returns the files that it has written; none if the platform has no such artefact.
    pack: fn(&Release) -> Result<Vec<PathBuf>, String>,
    /// Installs the files, and uses them. Returns what [`check::exercise`] does.
    check: fn(&Release, &[PathBuf]) -> Result<Option<Duration>, String>,
}

const ARTEFACTS: [Artefact; 6] = [
    Artefact { name: "tarball", pack: tarball::pack_tarball, check: tarball::check_tarball },
    Artefact { name: "deb", pack: tarball::pack_deb, check: tarball::check_deb },
    Artefact { name: "npm", pack: npm::pack, check: npm::check },
    Artefact { name: "wheels", pack: wheel::pack, check: wheel::check },
    Artefact { name: "image", pack: image::pack_server, check: image::check },
    Artefact { name: "agents-image", pack: image::pack_agents, check: image::check },
];

/// The parsed arguments.
#[derive(Debug, Default, PartialEq)]
struct Arguments {
    is_checked: bool,
    only: Option<String>,
    target: Option<String>,
    binary: Option<PathBuf>,
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--check" {
                arguments.is_checked = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("the arguments are {TAKES}"))?;
            match word.as_str() {
                "--only" if ARTEFACTS.iter().any(|artefact| artefact.name == value) => {
                    arguments.only = Some(value.clone());
                }
                "--target" => arguments.target = Some(value.clone()),
                "--binary" => arguments.binary = Some(PathBuf::from(value)),
                _ => return Err(format!("the arguments are {TAKES}")),
            }
        }
        Ok(arguments)
    }

    fn selects(&self, artefact: &Artefact) -> bool {
        self.only.as_deref().is_none_or(|only| only == artefact.name)
    }
}

/// Packs, and checks if requested.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let arguments = Arguments::parse(words)?;
    let platform = Platform::find(arguments.target.as_deref())?;
    match &arguments.binary {
        Some(program) => println!("packing   {} for {}", program.display(), platform.triple),
        None => println!("building  the program for {}", platform.triple),
    }
    let release = Release::prepare(root, platform, arguments.binary.as_deref())?;
    if arguments.binary.is_some() && platform.has_glibc() {
        println!("          it needs glibc 2.{} or newer", release.glibc_minor);
    }
    let mut packed = Vec::new();
    for artefact in ARTEFACTS.iter().filter(|artefact| arguments.selects(artefact)) {
        println!("packing   {}", artefact.name);
        packed.push((artefact, (artefact.pack)(&release)?));
    }
    write_checksums(&release, packed.iter().flat_map(|(_, files)| files))?;
    if !arguments.is_checked {
        return Ok(ExitCode::SUCCESS);
    }
    let mut results = Vec::new();
    for (artefact, files) in packed.iter().filter(|(_, files)| !files.is_empty()) {
        println!("checking  {}", artefact.name);
        let start = Instant::now();
        let checked = (artefact.check)(&release, files);
        match &checked {
            Ok(Some(approved)) => println!(
                "figure  from the installation to an approved call of an agent, {}: {:.1} s",
                artefact.name,
                approved.as_secs_f64()
            ),
            Ok(None) => {}
            Err(why) => println!("          {why}"),
        }
        let name = format!("the artefact is installed and used: {}", artefact.name);
        results.push(StepResult { name, good: checked.is_ok(), took: start.elapsed() });
    }
    Ok(command::exit_code(command::print_results(&results)))
}

/// Writes the checksums of all files, and prints their sizes.
fn write_checksums<'a>(
    release: &Release,
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<(), String> {
    let mut sums = BTreeMap::new();
    for path in files {
        let content = fs::read(path).map_err(describe(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        #[expect(clippy::cast_precision_loss, reason = "no artefact is that large")]
        let megabytes = content.len() as f64 / 1e6;
        println!("{megabytes:>8.1} MB  {name}");
        sums.insert(name.into_owned(), archive::sha256(&content));
    }
    let lines: String = sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    release.write("SHA256SUMS", lines.as_bytes()).map(drop)
}
