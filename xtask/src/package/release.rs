//! What every artefact of a release is made from: the program, its version, the time of the commit, and the documents
//! that go with the program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

use super::archive;
use super::binary::{self, Platform};
use super::check;
use super::dependencies::Dependencies;
use crate::command;

/// A release for one platform.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) root: PathBuf,
    /// The folder of the artefacts.
    pub(super) out: PathBuf,
    /// The name of the packages at registries.
    pub(super) name: String,
    pub(super) version: String,
    /// The time of the commit, in seconds since 1970. All files of all artefacts have it.
    pub(super) epoch: u64,
    pub(super) platform: &'static Platform,
    pub(super) binary: PathBuf,
    /// The minor version of the oldest glibc that the program runs with; 0 if it does not use glibc.
    pub(super) glibc_minor: u32,
    /// The licences of the packages in the program.
    licences: String,
    /// The bill of materials.
    sbom: String,
}

/// The names of the documents.
const SBOM: &str = "abide.cdx.json";
const LICENCES: &str = "THIRD-PARTY-LICENSES.txt";
const README: &str = "README.md";
const OWN: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", README];

impl Release {
    /// Builds the program, unless one is given, and collects what goes with it. With a given program, nothing is compiled.
    pub(super) fn prepare(
        root: &Path,
        platform: &'static Platform,
        given: Option<&Path>,
    ) -> Result<Release, String> {
        let out = command::target(root).join("package");
        if out.exists() {
            fs::remove_dir_all(&out).map_err(describe(&out))?;
        }
        fs::create_dir_all(&out).map_err(describe(&out))?;
        let metadata = metadata(root)?;
        let name = distribution_name(&metadata)?;
        let version = workspace_version(&metadata)?;
        let epoch = commit_time(root)?;
        let binary = match given {
            Some(file) => find_program(root, file)?,
            None => binary::build(root, platform, epoch)?,
        };
        let glibc_minor = match given {
            _ if !platform.has_glibc() => 0,
            // It runs with the glibc of the system that has built it, and newer ones.
            Some(_) => binary::needed_glibc(&binary)?,
            None => binary::GLIBC_MINOR,
        };
        let expected = format!("abide {version}\n");
        let printed = check::output(Command::new(&binary).arg("--version"))?;
        if printed != expected {
            return Err(format!("{} is {}, not {expected}", binary.display(), printed.trim()));
        }
        let dependencies = Dependencies::read(root, platform.triple)?;
        let digest = archive::sha256(&fs::read(&binary).map_err(describe(&binary))?);
        let sbom = serde_json::to_string_pretty(&dependencies.sbom(&digest));
        Ok(Release {
            root: root.to_owned(),
            out,
            name,
            version,
            epoch,
            platform,
            binary,
            glibc_minor,
            licences: dependencies.licences()?,
            sbom: sbom.map_err(|why| why.to_string())? + "\n",
        })
    }

    /// Returns the content of the program.
    pub(super) fn program(&self) -> Result<Vec<u8>, String> {
        fs::read(&self.binary).map_err(describe(&self.binary))
    }

    /// Returns the files that go with the program: its name and its content.
    pub(super) fn documents(&self) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        let mut documents = vec![
            (LICENCES, self.licences.clone().into_bytes()),
            (SBOM, self.sbom.clone().into_bytes()),
        ];
        for name in OWN {
            let path = self.root.join(name);
            let mut text = fs::read_to_string(&path).map_err(describe(&path))?;
            if name == README {
                text = drop_links_to_files(&text);
            }
            documents.push((name, text.into_bytes()));
        }
        Ok(documents)
    }

    /// Writes the documents into a folder, except the README: packages of registries have their own.
    pub(super) fn write_documents(&self, folder: &Path) -> Result<(), String> {
        for (name, content) in self.documents()? {
            if name != README {
                let path = folder.join(name);
                fs::write(&path, content).map_err(describe(&path))?;
            }
        }
        Ok(())
    }

    /// Writes an artefact.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<Vec<PathBuf>, String> {
        let path = self.out.join(name);
        fs::write(&path, content).map_err(describe(&path))?;
        Ok(vec![path])
    }
}

/// Returns a Markdown text without its pictures and links to files that a package does not have. The labels of links remain.
pub(super) fn drop_links_to_files(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, following)) = after.split_once(')') else { break };
        rest = following;
        let is_reachable =
            target.starts_with("https://") || target.starts_with('#') || OWN.contains(&target);
        match before.rsplit_once('[') {
            Some((outside, label)) if !is_reachable => match outside.strip_suffix('!') {
                Some(outside) => text.push_str(outside),
                None => text.extend([outside, label]),
            },
            _ => text.extend([before, "](", target, ")"]),
        }
    }
    text + rest
}

/// Returns the path of a program that was built before. The folder `target` is the one that cargo uses.
fn find_program(root: &Path, given: &Path) -> Result<PathBuf, String> {
    let path = match given.strip_prefix("target") {
        Ok(inner) => command::target(root).join(inner),
        Err(_) => given.to_owned(),
    };
    fs::canonicalize(&path).map_err(describe(&path))
}

/// Returns a function that adds a path to an error.
pub(super) fn describe(path: &Path) -> impl Fn(io::Error) -> String {
    let path = path.display().to_string();
    move |why| format!("{path}: {why}")
}

/// Reads the manifests of the workspace.
pub(super) fn metadata(root: &Path) -> Result<Metadata, String> {
    let mut cargo = MetadataCommand::new();
    cargo.manifest_path(root.join("Cargo.toml")).no_deps();
    cargo.exec().map_err(|why| format!("cargo metadata: {why}"))
}

/// Returns the name of the packages at registries: the workspace has it once.
pub(crate) fn distribution_name(metadata: &Metadata) -> Result<String, String> {
    let name = metadata.workspace_metadata["distribution"]["name"].as_str();
    let name = name.ok_or("Cargo.toml has no [workspace.metadata.distribution] with a name")?;
    Ok(name.to_owned())
}

/// Returns the version of the workspace, which all packages have.
pub(crate) fn workspace_version(metadata: &Metadata) -> Result<String, String> {
    let package = metadata.packages.iter().find(|package| package.name == "abide");
    Ok(package.ok_or("there is no package abide")?.version.to_string())
}

/// The time of the commit, in seconds since 1970.
fn commit_time(root: &Path) -> Result<u64, String> {
    let time =
        check::output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    time.trim().parse().map_err(|_| format!("git printed {time:?} as the time of the commit"))
}
