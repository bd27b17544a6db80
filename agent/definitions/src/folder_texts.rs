//! Text files of a runtime's folder: definitions, prompts, skills and instruction files. Files outside of the
//! folder are never read, regardless of paths or symlinks. Files of other types are not read either, because the
//! folder may also contain keys and tokens.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::DefinitionError;

/// Maximum size of a text, in bytes.
const MOST: u64 = 1 << 20;

/// How to correct a text that is not there.
const CREATE: &str = "create the file in the agent folder, or correct its name";

/// Reads a text file in a folder. Its resolved name must have one of these extensions.
///
/// # Errors
/// [`DefinitionError::Missing`] with the reason.
pub fn read(folder: &Path, path: &Path, endings: &[&str]) -> Result<String, DefinitionError> {
    let unreadable = |why: String, hint: &'static str| DefinitionError::Missing {
        what: folder.join(path).display().to_string(),
        why,
        hint,
    };
    let missing = |why: String| unreadable(why, CREATE);
    let system = |why: io::Error| match why.kind() {
        io::ErrorKind::InvalidData => {
            unreadable("it is not UTF-8".to_owned(), "save the file as UTF-8")
        }
        io::ErrorKind::PermissionDenied => {
            unreadable(why.to_string(), "let the user of this program read the file")
        }
        _ => missing(why.to_string()),
    };
    let root = fs::canonicalize(folder).map_err(system)?;
    let file = fs::canonicalize(folder.join(path)).map_err(system)?;
    let Ok(below) = file.strip_prefix(&root) else {
        return Err(missing("the file is outside of the agent folder".to_owned()));
    };
    let ending = below.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if !endings.contains(&ending) || below == Path::new("abide.yaml") {
        let why = format!(
            "the file type is not permitted: the name must end in .{}",
            endings.join(" or .")
        );
        return Err(missing(why));
    }
    let opened = open(&root, below).map_err(system)?;
    if !opened.metadata().map_err(system)?.is_file() {
        return Err(missing("not a regular file".to_owned()));
    }
    let mut text = String::new();
    opened.take(MOST + 1).read_to_string(&mut text).map_err(system)?;
    if text.len() as u64 > MOST {
        return Err(missing(format!("the file is larger than {MOST} bytes")));
    }
    Ok(text)
}

/// Reads the text of a name, in the subfolder of texts of its kind.
///
/// # Errors
/// [`DefinitionError::Missing`] with the reason.
pub fn read_named(folder: &Path, below: &str, name: &str) -> Result<String, DefinitionError> {
    // It is a name, not a path.
    if name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.') {
        let why = "the name must not contain a path".to_owned();
        let what = format!("{below}/{name}.md");
        return Err(DefinitionError::Missing { what, why, hint: CREATE });
    }
    read(folder, &Path::new(below).join(format!("{name}.md")), &["md"])
}

/// Opens a file without following symlinks. The path is already resolved, so a symlink in it was created
/// afterwards.
fn open(root: &Path, below: &Path) -> io::Result<File> {
    // Opening a pipe would block otherwise.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, ResolveFlags, open, openat2};
        let folder = open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&folder, below, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // An older kernel, or a sandbox that blocks the system call.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {}
            opened => return Ok(File::from(opened?)),
        }
    }
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(root.join(below))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Regression: `memory: ["abide.yaml"]` copied the provider's key into a row that every tenant could read, and
    /// symlinks were followed.
    #[test]
    fn only_texts_below_the_folder_are_read() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let folder = home.path().join("agents");
        fs::create_dir_all(folder.join("more")).expect("the folder can be created");
        let write =
            |path: &str| fs::write(home.path().join(path), path).expect("the file can be written");
        for path in [
            "outside.md",
            "agents/a.md",
            "agents/more/b.md",
            "agents/abide.yaml",
            "agents/.env",
            "agents/key.pem",
        ] {
            write(path);
        }
        fs::write(folder.join("long.md"), vec![b'x'; (MOST + 1) as usize])
            .expect("the file can be written");
        fs::create_dir(folder.join("folder.md")).expect("the folder can be created");
        for (target, link) in [
            ("more/b.md", "inside.md"),
            ("../outside.md", "out.md"),
            ("abide.yaml", "config.md"),
            (".env", "env.md"),
            ("/etc/passwd", "passwd.md"),
            ("..", "up"),
            ("gone", "dangling.md"),
        ] {
            symlink(target, folder.join(link)).expect("the file can be written");
        }
        let absolute = folder.join("a.md").display().to_string();
        let outside = home.path().join("outside.md").display().to_string();
        let away = "is outside of the agent folder";
        let no_text = "file type is not permitted";
        let cases = [
            ("a.md", Ok("agents/a.md")),
            ("./more/b.md", Ok("agents/more/b.md")),
            ("inside.md", Ok("agents/more/b.md")),
            ("more/../a.md", Ok("agents/a.md")),
            (&absolute, Ok("agents/a.md")),
            (&outside, Err(away)),
            ("../outside.md", Err(away)),
            ("up/outside.md", Err(away)),
            ("out.md", Err(away)),
            ("passwd.md", Err(away)),
            ("/etc/passwd", Err(away)),
            ("abide.yaml", Err(no_text)),
            ("config.md", Err(no_text)),
            (".env", Err(no_text)),
            ("env.md", Err(no_text)),
            ("key.pem", Err(no_text)),
            ("dangling.md", Err("No such file")),
            ("folder.md", Err("not a regular file")),
            ("long.md", Err("is larger than 1048576 bytes")),
        ];
        for (path, expected) in cases {
            match (read(&folder, Path::new(path), &["md"]), expected) {
                (Ok(text), Ok(expected)) => assert_eq!(text, expected, "{path}"),
                (Err(error), Err(why)) => {
                    assert!(error.to_string().contains(why), "{path}: {error}")
                }
                (read, _) => panic!("{path}: {read:?}"),
            }
        }
        let yaml = read(&folder, Path::new("abide.yaml"), &["yaml"]);
        assert!(yaml.is_err(), "the same applies to definitions");
    }
}
