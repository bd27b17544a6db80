//! `cargo xtask sdk`: the tests of the TypeScript and Python SDKs, against the debug binary of `abide`.
//!
//! `cargo xtask test` runs [`SUITES`]. `--frameworks` runs [`FRAMEWORKS`] after them: the adapters against the real
//! frameworks, whose installation takes minutes, and packages as they are published. Where Node or Python is missing, the suites that
//! need it are reported as skipped; if nothing may be skipped ([`command::NEED_ALL`]), that is an error.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
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

/// What programs that use the SDKs need.
const PREPARATIONS: [Suite; 2] = [
    Suite {
        language: Language::TypeScript,
        folder: "client-sdk/typescript",
        commands: &["npm ci", "npm run build"],
    },
    Suite {
        language: Language::Python,
        folder: "client-sdk/python",
        commands: &["python -m pip install --quiet -e ."],
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
    let SuiteResults { results, skipped } = run_all(root, &suites)?;
    skipped.iter().for_each(|what| println!("skipped   {what}"));
    Ok(command::exit_code(command::print_results(&results)))
}

/// Writes the types of the built-in tables and reducers. Fails without Node.
pub(crate) fn write_types(root: &Path) -> Result<ExitCode, String> {
    let SuiteResults { results, skipped } = run_all(root, &[&TYPES])?;
    if !skipped.is_empty() {
        return Err(format!("the types of {} need {}", TYPES.folder, TYPES.language.needs()));
    }
    Ok(command::exit_code(command::print_results(&results)))
}

/// Builds the SDKs for programs that use them. Returns the search path of these programs. Fails without Node or Python.
pub(crate) fn prepare(root: &Path) -> Result<String, String> {
    let toolchain = Toolchain::find(root)?;
    for suite in &PREPARATIONS {
        let language = suite.language;
        let path = toolchain
            .path_for(language)
            .ok_or_else(|| format!("the SDK in {} needs {}", suite.folder, language.needs()))?;
        let results = run_suite(root, suite, &toolchain.binary, path)?;
        if let Some(failed) = results.iter().find(|step| !step.good) {
            return Err(format!("{} failed", failed.name));
        }
    }
    // The path of Python contains that of Node.
    Ok(toolchain.python.unwrap_or_default())
}

/// The result of a set of suites.
pub(crate) struct SuiteResults {
    /// The commands that were run.
    pub(crate) results: Vec<StepResult>,
    /// The suites that were not run, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// Runs the tests of the SDKs, without those of the frameworks.
pub(crate) fn run_sdks(root: &Path) -> Result<SuiteResults, String> {
    run_all(root, &SUITES.iter().collect::<Vec<_>>())
}

/// Runs the suites one after the other.
fn run_all(root: &Path, suites: &[&Suite]) -> Result<SuiteResults, String> {
    let toolchain = Toolchain::find(root)?;
    let mut ran = SuiteResults { results: Vec::new(), skipped: Vec::new() };
    for suite in suites {
        match toolchain.path_for(suite.language) {
            Some(path) => ran.results.extend(run_suite(root, suite, &toolchain.binary, path)?),
            None => {
                let needs = suite.language.needs();
                ran.skipped.push(format!("the tests of {}: {needs} is not here", suite.folder));
            }
        }
    }
    Ok(ran)
}

/// Runs the commands of a suite until one fails, with this search path.
fn run_suite(
    root: &Path,
    suite: &Suite,
    binary: &Path,
    path: &str,
) -> Result<Vec<StepResult>, String> {
    let mut results = Vec::new();
    for line in suite.commands {
        println!("running   {line} in {}", suite.folder);
        let start = Instant::now();
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(root.join(suite.folder)).stdin(Stdio::null());
        shell.env("PATH", path).env("ABIDE_BINARY", binary);
        let status = shell.status().map_err(|why| format!("cannot run sh: {why}"))?;
        let name = format!("{}: {line}", suite.folder);
        results.push(StepResult { name, good: status.success(), took: start.elapsed() });
        if !status.success() {
            break;
        }
    }
    Ok(results)
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
        if env::var_os(command::NEED_ALL).is_some() && !is_complete {
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

/// Returns the folder of programs of the virtual environment for the tests, which is created if necessary; `None`
/// without Python.
fn python(target: &Path) -> Result<Option<PathBuf>, String> {
    const IS_NEW_ENOUGH: &str = "import sys, venv, ensurepip; assert sys.version_info >= (3, 10)";
    if !succeeds("python3", &["-c", IS_NEW_ENOUGH]) {
        return Ok(None);
    }
    let bin = command::virtual_environment(&target.join("sdk-python"))?;
    // Groups of dependencies need pip 25.1.
    let mut pip = Command::new(bin.join("pip"));
    pip.args(["install", "--quiet", "pip>=25.1"]).stdin(Stdio::null());
    command::succeed(&mut pip, "pip install")?;
    Ok(Some(bin))
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
