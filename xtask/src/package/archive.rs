//! Archives that are the same wherever they are written: sorted members, one time, no names of users.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The members of an archive, by their paths without a leading `/`.
#[derive(Debug, Default)]
pub(super) struct Archive {
    members: BTreeMap<String, Member>,
}

#[derive(Debug)]
struct Member {
    content: Content,
    mode: u32,
    /// The user and the group.
    owner: u64,
}

#[derive(Debug)]
enum Content {
    Folder,
    File(Vec<u8>),
    /// A symbolic link to this target.
    Link(String),
}

impl Archive {
    /// Adds a file, and the folders of its path.
    pub(super) fn file(&mut self, path: impl Into<String>, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.add(path.into(), Member { content: Content::File(bytes.into()), mode, owner: 0 });
    }

    /// Adds a folder, and the folders of its path.
    pub(super) fn folder(&mut self, path: impl Into<String>, mode: u32, owner: u64) {
        self.add(path.into(), Member { content: Content::Folder, mode, owner });
    }

    /// Adds a symbolic link, and the folders of its path.
    pub(super) fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        let content = Content::Link(target.into());
        self.add(path.into(), Member { content, mode: 0o777, owner: 0 });
    }

    fn add(&mut self, path: String, member: Member) {
        for (at, _) in path.match_indices('/') {
            let folder = Member { content: Content::Folder, mode: 0o755, owner: 0 };
            self.members.entry(path[..at].to_owned()).or_insert(folder);
        }
        self.members.insert(path, member);
    }

    /// Adds what a folder contains, below `to`, as far as `keep` permits; it gets the path in the archive.
    pub(super) fn tree(
        &mut self,
        folder: &Path,
        to: &str,
        keep: &dyn Fn(&str) -> bool,
    ) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if to.is_empty() { name } else { format!("{to}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.tree(&entry.path(), &path, keep)?;
            } else if kind.is_symlink() && keep(&path) {
                let target = fs::read_link(entry.path())?;
                self.link(path, target.to_string_lossy());
            } else if kind.is_file() && keep(&path) {
                let mode = entry.metadata()?.permissions().mode();
                self.file(path, mode & 0o755, fs::read(entry.path())?);
            }
        }
        Ok(())
    }

    /// Returns the archive in the format of tar.
    pub(super) fn to_tar(&self, mtime: u64) -> io::Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, Member { content, mode, owner }) in &self.members {
            let mut header = Header::new_gnu();
            header.set_mode(*mode);
            header.set_uid(*owner);
            header.set_gid(*owner);
            header.set_mtime(mtime);
            header.set_size(0);
            match content {
                Content::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    builder.append_data(&mut header, format!("{path}/"), io::empty())?;
                }
                Content::File(bytes) => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(bytes.len() as u64);
                    builder.append_data(&mut header, path, bytes.as_slice())?;
                }
                Content::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    builder.append_link(&mut header, path, target)?;
                }
            }
        }
        builder.into_inner()
    }

    /// Returns the compressed archive.
    pub(super) fn to_tar_gz(&self, mtime: u64) -> io::Result<Vec<u8>> {
        gzip(&self.to_tar(mtime)?)
    }
}

/// Compresses as `gzip -9n`, as Debian requires of manual pages.
pub(super) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Returns the SHA-256 in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an archive of `ar(1)`, the format of Debian packages. Names have at most 16 characters.
pub(super) fn ar(members: &[(&str, Vec<u8>)], mtime: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        archive.extend(format!("{name:<16}{mtime:<12}0     0     100644  {size:<10}`\n").bytes());
        archive.extend_from_slice(content);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}
