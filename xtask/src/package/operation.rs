//! `cargo xtask operation`: runs the commands of `docs/operation.md` in a new Debian root, with the Debian package.
//!
//! The page runs from top to bottom in one shell of root, without a network and with a disk of 128 MB for the service.
//! systemd is not booted: `package/operation/systemctl` starts and stops what the units name. A comment
//! `<!-- before: COMMAND -->` is a failure from which the next block recovers.
//!
//! | block | |
//! |---|---|
//! | `sh` | succeeds |
//! | `sh fails` | its last command fails |
//! | `text` | what the block before it prints |
//! | others | are not run |

#[path = "../../../tests/process/docs/blocks.rs"]
mod blocks;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use super::binary::Platform;
use super::release::{Release, describe, distribution_name, metadata, workspace_version};
use super::{check, image, matrix, tarball};
use crate::command::{self, StepResult};
use blocks::{Block, Kind};

/// The arguments.
pub(crate) const TAKES: &str =
    "[--binary FILE]   a program to pack; without it, the Debian package of `cargo xtask package`";

const PAGE: &str = "docs/operation.md";

/// What takes the place of `systemctl`.
const SYSTEMCTL: &str = include_str!("../../../package/operation/systemctl");

/// What is added to the packages that apt needs.
const PACKAGES: &str = "ca-certificates";

/// Bytes of the file system of the service.
const DISK: &str = "134217728";

/// Maximum seconds for all blocks.
const TIMEOUT: &str = "600";

/// Begins the output of each block.
const MARK: &str = "==== line ";

/// Makes the root, and runs the page in it.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let given = match words {
        [] => None,
        [option, file] if option == "--binary" => Some(Path::new(file)),
        _ => return Err(format!("the arguments are {TAKES}")),
    };
    if check::output(Command::new("id").arg("-u"))?.trim() != "0" {
        let reason = "only root can start the service as another user: run it as root, for example in a container";
        if env::var_os(command::NEED_ALL).is_some() {
            return Err(reason.to_owned());
        }
        println!("skipped: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let page = root.join(PAGE);
    let page = fs::read_to_string(&page).map_err(describe(&page))?;
    let package = debian_package(root, given)?;
    let folder = check::empty_folder()?;
    let system = folder.path().join("root");
    println!("making    a Debian root");
    check::output(&mut image::debian("apt", PACKAGES, None, &system))?;
    let copy = system.join("root").join(package.file_name().unwrap_or_default());
    fs::copy(&package, &copy).map_err(describe(&package))?;
    let systemctl = system.join("usr/local/bin/systemctl");
    fs::write(&systemctl, SYSTEMCTL).map_err(describe(&systemctl))?;
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755))
        .map_err(describe(&systemctl))?;

    println!("running   {PAGE}");
    let start = Instant::now();
    let ran = run_page(&mut shell_in(&system), &page);
    match &ran {
        Ok(blocks) => println!("figure  blocks of {PAGE} that a new Debian root ran: {blocks}"),
        Err(why) => println!("{why}"),
    }
    let name = format!("the commands of {PAGE} run in a new Debian root");
    let result = StepResult { name, good: ran.is_ok(), took: start.elapsed() };
    Ok(command::exit_code(command::print_results(&[result])))
}

/// Packs a program, or returns the package that exists.
fn debian_package(root: &Path, given: Option<&Path>) -> Result<PathBuf, String> {
    let platform = Platform::find(None)?;
    let Some(program) = given else {
        let metadata = metadata(root)?;
        let begins =
            format!("{}_{}_", distribution_name(&metadata)?, workspace_version(&metadata)?);
        return matrix::find(&command::target(root).join("package"), &begins, ".deb");
    };
    let release = Release::prepare(root, platform, Some(program))?;
    let packed = tarball::pack_deb(&release)?;
    packed.into_iter().next().ok_or_else(|| format!("{} has no Debian package", platform.triple))
}

/// A shell of root in the root, without the network and the processes of this machine. All processes end with it.
fn shell_in(system: &Path) -> Command {
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=10", TIMEOUT, "bwrap", "--bind"]).arg(system).arg("/");
    shell.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    // The folder in which systemd has the state of services with a dynamic user.
    shell.args(["--perms", "0711", "--size", DISK, "--tmpfs", "/var/lib/private"]);
    shell.args(["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]);
    // bwrap drops them otherwise, and root installs packages and starts the service as its user.
    shell.args(["--cap-add", "ALL", "--die-with-parent", "--clearenv"]);
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    shell.args(["--setenv", "PATH", path, "--setenv", "HOME", "/root", "--chdir", "/root", "sh"]);
    shell
}

/// Runs a page in a shell. Returns the number of its blocks that ran.
///
/// # Errors
/// What went wrong in the first block that did.
fn run_page(shell: &mut Command, page: &str) -> Result<usize, String> {
    let blocks = blocks::read(PAGE, page)?;
    // One argument: commands that read stdin would read the script.
    shell.args(["-c", &script(&blocks)]).stdin(Stdio::null());
    let ended = shell.output().map_err(|why| format!("cannot run {shell:?}: {why}"))?;
    let printed = String::from_utf8_lossy(&ended.stdout);
    if !ended.status.success() {
        let (_, last) = printed.rsplit_once(MARK).unwrap_or_default();
        let (line, output) = last.split_once('\n').unwrap_or((last, ""));
        let errors = String::from_utf8_lossy(&ended.stderr);
        return Err(format!("{PAGE}:{line}: {}\n{output}{errors}", ended.status));
    }
    for pair in blocks.windows(2) {
        let [block, expected] = pair else { continue };
        if expected.kind == Kind::Output && is_counted(block) {
            let output = output_of(&printed, block);
            if let Some(why) = blocks::find_difference(output, &expected.text) {
                return Err(format!("{PAGE}:{}: {why}", expected.line));
            }
        }
    }
    Ok(blocks.iter().filter(|block| is_counted(block)).count())
}

/// Whether a reader runs a block.
fn is_counted(block: &Block) -> bool {
    matches!(block.kind, Kind::Runs | Kind::Fails)
}

/// Returns what a block has printed, without the line break before the next mark.
fn output_of<'printed>(printed: &'printed str, block: &Block) -> &'printed str {
    let mark = format!("{MARK}{}\n", block.line);
    let output = printed.split_once(&mark).map_or("", |(_, rest)| rest);
    output.split_once(MARK).map_or(output, |(output, _)| output).trim_end()
}

/// The script of a page: it prints a mark before each block, and ends at the first block that does not do what it should.
fn script(blocks: &[Block]) -> String {
    let mut script = "set -e\nexec 2>&1\n".to_owned();
    for Block { line, kind, text } in blocks {
        let mark = format!("printf '\\n{MARK}{line}\\n'\n");
        script += &match kind {
            Kind::Before | Kind::Runs => format!("{mark}{text}"),
            Kind::Fails => {
                format!("{mark}if {{\n{text}}}; then echo 'It does not fail.'; exit 1; fi\n")
            }
            Kind::Background | Kind::NotRun | Kind::Output | Kind::Other => String::new(),
        };
    }
    // The last command of a block can have failed in a condition.
    script + "exit 0\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_runs_in_one_shell_and_a_wrong_one_is_found() {
        let result = |page: &str| run_page(&mut Command::new("sh"), page);
        let right = "<!-- before: A=1 -->\n```sh\necho $A b\n```\n```text\n1 …\n```\n\
                     ```sh fails\ntrue\nfalse\n```\n```sh no-run\nfalse\n```\n```sh\nprintf 2\n```\n";
        assert_eq!(result(right), Ok(3));
        for (wrong, expected) in [
            ("```sh\nfalse\ntrue\n```\n", "docs/operation.md:1: "),
            ("\n```sh fails\ntrue\n```\n", "docs/operation.md:2: "),
            ("<!-- before: false -->\n```sh\ntrue\n```\n", "docs/operation.md:1: "),
            ("```sh\necho a\n```\n\n```text\nb\n```\n", "docs/operation.md:5: the page says\nb\n"),
            ("```sh\necho why >&2\nfalse\n```\n", "why"),
        ] {
            let found = result(wrong).expect_err(wrong);
            assert!(found.contains(expected), "{wrong}: {found}");
        }
    }

    /// A block that is not marked as one that runs would not be noticed.
    #[test]
    fn the_page_runs_what_it_describes() {
        let page = include_str!("../../../docs/operation.md");
        let blocks = blocks::read(PAGE, page).expect("they are closed");
        let count = |kind| blocks.iter().filter(|block| block.kind == kind).count();
        assert!(count(Kind::Runs) >= 10, "{blocks:?}");
        assert!(count(Kind::Before) >= 4 && count(Kind::Fails) >= 1, "{blocks:?}");
        assert_eq!(count(Kind::Background), 0, "they would not be run");
        let script = script(&blocks);
        for command in ["abide backup", "abide upgrade", "abide verify", "abide token create"] {
            assert!(script.contains(command), "{command}");
        }
    }
}
