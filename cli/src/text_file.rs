//! Reads the small text files that an operator names: the configuration and secrets.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// A file that was read.
#[derive(Debug)]
pub(crate) struct TextFile {
    /// Its content.
    pub(crate) text: String,
    /// Its owner and permissions when it was read.
    pub(crate) metadata: Metadata,
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
}

fn describe(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::NotFound => "it does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        _ => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
