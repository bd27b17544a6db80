//! The program of a release: built once, with the profile `dist`, and packed by every artefact.
//!
//! On Linux, zig links it against an old glibc, so that it runs on every distribution in use.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::check;
use crate::command;

/// The minor version of the oldest glibc that the program of a release runs with: 2.28, of Debian 10, Ubuntu 20.04 and
/// RHEL 8.
pub(super) const GLIBC_MINOR: u32 = 28;

/// The packages of PyPI that link it.
const LINKER: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// mimalloc contains the time at which it is compiled, which zig refuses, because two builds would differ.
const NO_TIME: [&str; 3] = ["-Wno-builtin-macro-redefined", "-D__DATE__=\"-\"", "-D__TIME__=\"-\""];

/// A platform that a program is built for, and its names elsewhere.
#[derive(Debug)]
pub(super) struct Platform {
    pub(super) triple: &'static str,
    /// Of packages of npm.
    pub(super) npm: Option<&'static str>,
    /// Of Debian packages and of images.
    pub(super) architecture: Option<&'static str>,
    /// The tag of wheels, if it does not follow from the program.
    pub(super) wheel: Option<&'static str>,
}

const PLATFORMS: [Platform; 5] = [
    Platform {
        triple: "x86_64-unknown-linux-gnu",
        npm: Some("linux-x64"),
        architecture: Some("amd64"),
        wheel: None,
    },
    Platform {
        triple: "aarch64-unknown-linux-gnu",
        npm: Some("linux-arm64"),
        architecture: Some("arm64"),
        wheel: None,
    },
    // Only a tarball: npm and PyPI have the program of glibc.
    Platform { triple: "x86_64-unknown-linux-musl", npm: None, architecture: None, wheel: None },
    Platform {
        triple: "x86_64-apple-darwin",
        npm: Some("darwin-x64"),
        architecture: None,
        wheel: Some("macosx_10_12_x86_64"),
    },
    Platform {
        triple: "aarch64-apple-darwin",
        npm: Some("darwin-arm64"),
        architecture: None,
        wheel: Some("macosx_11_0_arm64"),
    },
];

impl Platform {
    /// Returns the platform of a target triple, or the usual one of this machine.
    pub(super) fn find(triple: Option<&str>) -> Result<&'static Platform, String> {
        let usual = match env::consts::OS {
            "linux" => format!("{}-unknown-linux-gnu", env::consts::ARCH),
            "macos" => format!("{}-apple-darwin", env::consts::ARCH),
            other => format!("{}-{other}", env::consts::ARCH),
        };
        let triple = triple.unwrap_or(&usual);
        PLATFORMS.iter().find(|platform| platform.triple == triple).ok_or_else(|| {
            let all = PLATFORMS.map(|platform| platform.triple).join(", ");
            format!("no packages are made for {triple}; the platforms are {all}")
        })
    }

    pub(super) fn is_linux(&self) -> bool {
        self.triple.contains("-linux-")
    }

    pub(super) fn has_glibc(&self) -> bool {
        self.triple.ends_with("-gnu")
    }

    /// The target for zig, with the version of glibc.
    fn zig_target(&self) -> String {
        if self.has_glibc() {
            format!("{}.2.{GLIBC_MINOR}", self.triple)
        } else {
            self.triple.to_owned()
        }
    }
}

/// Builds the program. Returns its path.
pub(super) fn build(root: &Path, platform: &Platform, epoch: u64) -> Result<PathBuf, String> {
    let mut build = command::cargo(root);
    if platform.is_linux() {
        let tools = install(root, &LINKER)?;
        build.env("PATH", path_with(&tools)).args(["zigbuild", "--target"]);
        build.arg(platform.zig_target());
        build.env(format!("CFLAGS_{}", platform.triple.replace('-', "_")), NO_TIME.join(" "));
    } else {
        build.args(["build", "--target", platform.triple]);
        // The oldest versions of macOS that Rust supports.
        build.env(
            "MACOSX_DEPLOYMENT_TARGET",
            if platform.triple.starts_with("x86") { "10.12" } else { "11.0" },
        );
    }
    build.args(["--profile", "dist", "--locked", "--package", "abide", "--bin", "abide"]);
    build.env("SOURCE_DATE_EPOCH", epoch.to_string());
    // The messages of panics name source files: without the folders of the machine, every machine builds the same.
    let flags = remapped_folders(root).map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    command::succeed(&mut build, "the build of the program")?;
    Ok(command::target(root).join(platform.triple).join("dist/abide"))
}

/// Returns the minor version of the oldest glibc that a program for Linux runs with; 0 if it does not use glibc.
pub(super) fn needed_glibc(program: &Path) -> Result<u32, String> {
    let mut objdump = Command::new("objdump");
    let headers = check::output(objdump.arg("--private-headers").arg(program))?;
    Ok(newest_glibc(&headers))
}

/// Returns the newest version that the output of `objdump` has, in lines such as `0x069691b4 0x00 02 GLIBC_2.34`.
pub(super) fn newest_glibc(headers: &str) -> u32 {
    let versions = headers.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_2."));
    let minors = versions.filter_map(|version| version.split('.').next()?.parse::<u32>().ok());
    minors.max().unwrap_or_default()
}

/// The folders of this machine that the program would name, and their names in it.
fn remapped_folders(root: &Path) -> [(String, &'static str); 2] {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let home = home.unwrap_or_else(|| PathBuf::from(".cargo"));
    [(root.display().to_string(), "abide"), (home.display().to_string(), "cargo")]
}

/// Installs packages of PyPI in an environment of their own. Returns its folder of programs.
pub(super) fn install(root: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let bin = command::virtual_environment(&command::target(root).join("package-tools"))?;
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages);
    command::succeed(&mut pip, "pip install")?;
    Ok(bin)
}

/// The search path with a folder before all others.
fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), env::var("PATH").unwrap_or_default())
}
