//! `cargo xtask sdk`: the tests of the TypeScript and Python SDKs, against the debug binary of `abide`.
//!
//! `cargo xtask test` runs [`SUITES`]. `--frameworks` runs [`FRAMEWORKS`] after them: the adapters against the real
//! frameworks, whose installation takes minutes, and packages as they are published. Where Node or Python is missing, the suites that
//! need it are reported as skipped; if nothing may be skipped ([`crate::node::NEEDED`]), that is an error.

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use crate::command::{self, StepResult};

/// The arguments.
pub(crate) const TAKES: &str =
    "[--frameworks]   the SDKs; or their adapters with the frameworks, and packages";

/// A language of an SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    TypeScript,
    Python,
}

/// The tests of a folder.
struct Suite {
    language: Language,
    folder: &'static str,
    /// Commands that are run in the folder, one after the other.
    commands: &'static [&'static str],
}

/// The SDKs.
const SUITES: [Suite; 2] = [
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript",
        commands: &["npm ci", "npm test"],
    },
    Suite {
        language: Language::Python,
        folder: "client-sdk/python",
        commands: &[
            "python -m pip install --quiet -e . --group dev",
            "ruff check",
            "pytest --quiet -m 'not packed'",
        ],
    },
];

/// The adapters, packages, generated references, and clients of standard protocols. They use what [`SUITES`] has installed and built.
const FRAMEWORKS: [Suite; 7] = [
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript",
        commands: &["npm run test-packed"],
    },
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript/reference",
        commands: &["npm ci", "npm run build"],
    },
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript/adapters/ai-sdk",
        commands: &["npm ci", "npm test"],
    },
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript/adapters/openai-agents",
        commands: &["npm ci", "npm test"],
    },
    Suite {
        language: Language::Python,
        folder: "client-sdk/python",
        commands: &[
            "python -m pip install --quiet -e '.[frameworks]' --group frameworks",
            "mypy",
            "pytest --quiet tests/adapters",
            "pytest --quiet -m packed",
            "pdoc --docformat google --output-directory ../../target/reference/python \
             abide abide.sync abide.adapters",
        ],
    },
    Suite {
        language: Language::TypeScript,
        folder: "tests/clients",
        commands: &["npm ci", "npm test"],
    },
    Suite {
        language: Language::Python,
        folder: "tests/clients",
        commands: &[
            "python -m pip install --quiet 'openai>=3' 'a2a-sdk[grpc,http-server,signing]>=1.3,<2' cryptography uvicorn \
              'mcp>=2.3,<3' opentelemetry-proto-json",
            "pytest --quiet",
        ],
    },
];

/// Writes the types of the built-in tables and reducers in the TypeScript SDK.
const TYPES: Suite = Suite {
    language: Language::TypeScript,
    folder: "client-sdk/typescript",
    commands: &["npm ci", "npm run build", "npm run builtin-types"],
};

/// Runs the suites; fails if one of them fails.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let suites: Vec<&Suite> = match words {
        [] => SUITES.iter().collect(),
        [word] if word == "--frameworks" => FRAMEWORKS.iter().collect(),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    let Ran { results, skipped } = run_all(root, &suites)?;
    skipped.iter().for_each(|what| println!("skipped   {what}"));
    Ok(command::verdict(command::print_results(&results)))
}

/// Writes the types of the built-in tables and reducers. Fails without Node.
pub(crate) fn write_types(root: &Path) -> Result<ExitCode, String> {
    let Ran { results, skipped } = run_all(root, &[&TYPES])?;
    if !skipped.is_empty() {
        return Err(format!("the types of {} need {}", TYPES.folder, TYPES.language.needs()));
    }
    Ok(command::verdict(command::print_results(&results)))
}

/// The command that was run.
pub(crate) struct Ran {
    /// One for each command.
    pub(crate) results: Vec<StepResult>,
    /// The suites that were not run, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// Runs the tests of the SDKs, without those of the frameworks.
pub(crate) fn run_sdks(root: &Path) -> Result<Ran, String> {
    run_all(root, &SUITES.iter().collect::<Vec<_>>())
}

/// Runs the suites of each language one after the other, and the languages at the same time: most of the time is spent
/// on waiting.
fn run_all(root: &Path, suites: &[&Suite]) -> Result<Ran, String> {
    let toolchain = Toolchain::find(root)?;
    let run_language = |language| {
        let of_language = suites.iter().filter(|suite| suite.language == language);
        run_suites(root, &toolchain, of_language)
    };
    thread::scope(|scope| {
        let python = scope.spawn(|| run_language(Language::Python));
        let mut ran = run_language(Language::TypeScript)?;
        let Ran { results, skipped } = python.join().expect("no panic")?;
        ran.results.extend(results);
        ran.skipped.extend(skipped);
        Ok(ran)
    })
}

fn run_suites<'a>(
    root: &Path,
    toolchain: &Toolchain,
    suites: impl Iterator<Item = &'a &'a Suite>,
) -> Result<Ran, String> {
    let mut results = Vec::new();
    let mut skipped = Vec::new();
    for suite in suites {
        let Some(path) = toolchain.path_for(suite.language) else {
            let needs = suite.language.needs();
            skipped.push(format!("the tests of {}: {needs} is not here", suite.folder));
            continue;
        };
        for line in suite.commands {
            let start = Instant::now();
            println!("running   {line} in {}", suite.folder);
            let mut shell = Command::new("sh");
            // One stream, in the order in which it was written.
            shell.args(["-c", &format!("exec 2>&1; {line}")]).current_dir(root.join(suite.folder));
            shell.env("PATH", path).env("ABIDE_BINARY", &toolchain.binary).stdin(Stdio::null());
            let output = shell.output().map_err(|why| format!("cannot run sh: {why}"))?;
            let name = format!("{}: {line}", suite.folder);
            let good = output.status.success();
            let mut stdout = io::stdout().lock();
            let printed = writeln!(stdout, "---- output of {name}")
                .and_then(|()| stdout.write_all(&output.stdout))
                .and_then(|()| writeln!(stdout, "---- end of {name}"));
            printed.map_err(|why| format!("cannot write: {why}"))?;
            results.push(StepResult { name, good, took: start.elapsed() });
            if !good {
                break;
            }
        }
    }
    Ok(Ran { results, skipped })
}

impl Language {
    fn needs(self) -> &'static str {
        match self {
            Language::TypeScript => "Node 20 or newer with npm",
            Language::Python => "Python 3.10 or newer with venv",
        }
    }
}

/// The programs that the suites need.
struct Toolchain {
    /// The binary under test.
    binary: PathBuf,
    /// The search path with Node; `None` without Node.
    node: Option<String>,
    /// The search path with a virtual environment of Python; `None` without Python.
    python: Option<String>,
}

impl Toolchain {
    fn find(root: &Path) -> Result<Toolchain, String> {
        // With the features of `cargo test --workspace`, which has compiled most of it; see tests/process/program.rs.
        let mut build = command::cargo(root);
        build.args(["build", "--quiet", "--workspace", "--bin", "abide", "--example", "worker"]);
        build.stdin(Stdio::null());
        if !build.status().map_err(|why| format!("cannot start cargo: {why}"))?.success() {
            return Err("abide does not build".to_owned());
        }
        let target = command::target(root);
        let search = env::var("PATH").unwrap_or_default();
        let node = succeeds("npm", &["--version"]).then(|| search.clone());
        let python = python(&target)?.map(|bin| format!("{}:{search}", bin.display()));
        let is_complete = node.is_some() && python.is_some();
        if env::var_os(crate::node::NEEDED).is_some() && !is_complete {
            let needs = [Language::TypeScript, Language::Python].map(Language::needs);
            return Err(format!("install {}", needs.join(", and ")));
        }
        Ok(Toolchain { binary: target.join("debug/abide"), node, python })
    }

    fn path_for(&self, language: Language) -> Option<&str> {
        match language {
            Language::TypeScript => self.node.as_deref(),
            Language::Python => self.python.as_deref(),
        }
    }
}

/// The folder of programs of the virtual environment for the tests, which is created if necessary; `None` without
/// Python.
fn python(target: &Path) -> Result<Option<PathBuf>, String> {
    let folder = target.join("sdk-python");
    let bin = folder.join("bin");
    if bin.join("python").exists() {
        return Ok(Some(bin));
    }
    if !succeeds(
        "python3",
        &["-c", "import sys, venv, ensurepip; assert sys.version_info >= (3, 10)"],
    ) {
        return Ok(None);
    }
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(&folder).stdin(Stdio::null());
    let status = venv.status().map_err(|why| format!("cannot run python3: {why}"))?;
    if !status.success() {
        return Err("python3 -m venv failed".to_owned());
    }
    // Groups of dependencies need pip 25.1.
    if !succeeds(bin.join("pip"), &["install", "--quiet", "--upgrade", "pip"]) {
        return Err("pip cannot be upgraded".to_owned());
    }
    Ok(Some(bin))
}

fn succeeds(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
