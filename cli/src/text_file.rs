//! Reads the small text files that an operator names: the configuration and secrets. Also says whether a file or folder can be
//! the work of another user.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use abide_schema::has_too_many_files;
use rustix::fs::OFlags;
use rustix::process::geteuid;

/// A file that was read.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Its content.
    pub(crate) text: String,
    /// Its owner and permissions when it was read.
    metadata: Metadata,
}

impl TextFile {
    /// Reads a regular file. A pipe is not waited for, and a large file is not read.
    ///
    /// # Errors
    /// The reason, in the form "it is a folder".
    pub(crate) fn read(path: &Path, max_bytes: u64) -> Result<TextFile, String> {
        // Opening a pipe would block otherwise, and a terminal would become that of this process.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let file = opened.map_err(|why| describe(&why))?;
        let metadata = file.metadata().map_err(|why| describe(&why))?;
        if metadata.is_dir() {
            return Err("it is a folder, not a file".to_owned());
        }
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        let mut bytes = Vec::new();
        // The file can grow while it is read.
        file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|why| describe(&why))?;
        if bytes.len() as u64 > max_bytes {
            return Err(format!("it is larger than {max_bytes} bytes"));
        }
        let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        Ok(TextFile { text, metadata })
    }

    /// Returns `true` if this user or root owns the file, and not everybody can write it. Any other file can be the work of
    /// another user who can write its folder, such as `/tmp`.
    pub(crate) fn is_trusted(&self) -> bool {
        is_trusted(self.metadata.uid(), self.metadata.mode())
    }
}

/// Returns `true` if this user or root owns what is at a path, and not everybody can write it. If it is a symbolic link, this
/// user or root must also own the link. What does not exist, or cannot be seen, is trusted: it has no content.
pub(crate) fn is_trusted_path(path: &Path) -> bool {
    let Ok(link) = fs::symlink_metadata(path) else { return true };
    // Everybody can write a link, as its permissions have it.
    if link.is_symlink() && !is_trusted(link.uid(), 0) {
        return false;
    }
    fs::metadata(path).map_or(true, |target| is_trusted(target.uid(), target.mode()))
}

fn is_trusted(owner: u32, mode: u32) -> bool {
    let is_own = owner == geteuid().as_raw() || owner == 0;
    is_own && mode & 0o002 == 0
}

fn describe(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        _ if has_too_many_files(why) => {
            "too many files are open: raise the limit, `ulimit -n`".to_owned()
        }
        _ => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn only_small_regular_files_of_text_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            fs::write(folder.path().join(name), bytes).expect("it is written");
        };
        write("good", "grüße\n".as_bytes());
        write("large", &[b'x'; 9]);
        write("bytes", b"\xff");
        let read = |name: &str| TextFile::read(&folder.path().join(name), 8).map(|file| file.text);
        assert_eq!(read("good"), Ok("grüße\n".to_owned()));
        for (name, why) in [
            ("large", "it is larger than 8 bytes"),
            ("bytes", "it is not UTF-8"),
            (".", "it is a folder, not a file"),
            ("missing", "it does not exist"),
            ("/dev/null", "it is not a regular file"),
        ] {
            assert_eq!(read(name), Err(why.to_owned()), "{name}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let own = geteuid().as_raw();
        for (owner, mode, expected) in
            [(own, 0o100_644, true), (0, 0o100_644, true), (own, 0o100_646, false)]
        {
            assert_eq!(is_trusted(owner, mode), expected, "{owner} {mode:o}");
        }
        assert!(!is_trusted(own.wrapping_add(7), 0o100_644) || own.wrapping_add(7) == 0);
    }

    #[test]
    fn a_path_that_others_can_write_is_not_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("below");
        let link = folder.path().join("link");
        assert!(is_trusted_path(&below), "nothing is there");
        fs::create_dir(&below).expect("it is created");
        symlink("below", &link).expect("it is created");
        for (mode, expected) in [(0o755, true), (0o775, true), (0o777, false)] {
            fs::set_permissions(&below, fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(is_trusted_path(&below), expected, "{mode:o}");
            assert_eq!(is_trusted_path(&link), expected, "{mode:o}");
        }
    }
}
