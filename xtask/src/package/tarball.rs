//! The tarball of a platform, and the Debian package: the program with its completions, manual pages and licences.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::archive::{Archive, ar, gzip};
use super::check::{self, Installed};
use super::release::{Release, describe};

/// The completions of a shell: its name, the file of a tarball, and the file of a Debian package.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "abide.bash", "usr/share/bash-completion/completions/abide"),
    ("zsh", "_abide", "usr/share/zsh/vendor-completions/_abide"),
    ("fish", "abide.fish", "usr/share/fish/vendor_completions.d/abide.fish"),
];

/// The units of systemd, in the folder `deploy`.
const UNITS: [&str; 2] = ["abide.service", "abide.socket"];

/// What an operator adapts, in the folder `deploy`: `docs/operation.md` names it.
const EXAMPLES: [&str; 4] = ["Caddyfile", "alerts.yaml", "grafana.json", "nginx.conf"];

/// Writes the tarball.
pub(super) fn pack_tarball(release: &Release) -> Result<Vec<PathBuf>, String> {
    let folder = format!("abide-{}-{}", release.version, release.platform.triple);
    let mut archive = Archive::default();
    archive.file(format!("{folder}/abide"), 0o755, release.program()?);
    for (name, content) in release.documents()? {
        archive.file(format!("{folder}/{name}"), 0o644, content);
    }
    for (shell, file, _) in COMPLETIONS {
        archive.file(format!("{folder}/completions/{file}"), 0o644, completions(release, shell)?);
    }
    for (page, text) in manual(release)? {
        archive.file(format!("{folder}/man/{page}"), 0o644, text);
    }
    let bytes = archive.to_tar_gz(release.epoch).map_err(|why| why.to_string())?;
    release.write(&format!("{folder}.tar.gz"), &bytes)
}

/// Unpacks the tarball, and uses its program.
pub(super) fn check_tarball(
    release: &Release,
    files: &[PathBuf],
) -> Result<Option<Duration>, String> {
    let folder = check::empty_folder()?;
    let start = Instant::now();
    for file in files {
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(file).arg("--strip-components=1").current_dir(folder.path());
        check::output(&mut tar)?;
    }
    check::exercise(release, &Installed::new(folder.path().join("abide"), folder.path()), start)
}

/// Writes the Debian package. It has no configuration file and no user: the unit has a dynamic one.
pub(super) fn pack_deb(release: &Release) -> Result<Vec<PathBuf>, String> {
    let Some(architecture) = release.platform.architecture else { return Ok(Vec::new()) };
    let name = &release.name;
    let mut data = Archive::default();
    data.file("usr/bin/abide", 0o755, release.program()?);
    for (document, content) in release.documents()? {
        data.file(format!("usr/share/doc/{name}/{document}"), 0o644, content);
    }
    data.file(format!("usr/share/doc/{name}/copyright"), 0o644, COPYRIGHT);
    let changelog = gzip(changelog(release)?.as_bytes()).map_err(|why| why.to_string())?;
    data.file(format!("usr/share/doc/{name}/changelog.gz"), 0o644, changelog);
    for (shell, _, path) in COMPLETIONS {
        data.file(path, 0o644, completions(release, shell)?);
    }
    for (page, text) in manual(release)? {
        let compressed = gzip(&text).map_err(|why| why.to_string())?;
        data.file(format!("usr/share/man/man1/{page}.gz"), 0o644, compressed);
    }
    for unit in UNITS {
        data.file(format!("usr/lib/systemd/system/{unit}"), 0o644, deploy_file(release, unit)?);
    }
    for file in EXAMPLES {
        let path = format!("usr/share/doc/{name}/examples/{file}");
        data.file(path, 0o644, deploy_file(release, file)?);
    }
    let data = data.to_tar(release.epoch).map_err(|why| why.to_string())?;
    let control = control(release, architecture, data.len() / 1024)?;
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", control),
        ("data.tar.gz", gzip(&data).map_err(|why| why.to_string())?),
    ];
    let file = format!("{name}_{}_{architecture}.deb", release.version);
    release.write(&file, &ar(&members, release.epoch))
}

/// Returns a file of the folder `deploy`.
fn deploy_file(release: &Release, name: &str) -> Result<Vec<u8>, String> {
    let path = release.root.join("deploy").join(name);
    fs::read(&path).map_err(describe(&path))
}

/// The copyright notice of the Debian package, which has the texts next to it.
const COPYRIGHT: &str = "\
Copyright (c) 2026 The Abide authors

Abide is licensed under the MIT licence (LICENSE-MIT) or the Apache License 2.0 (LICENSE-APACHE, and on Debian systems
/usr/share/common-licenses/Apache-2.0), at your option. THIRD-PARTY-LICENSES.txt has the licences of the packages that
the program contains.
";

/// The maintainer of the Debian package. Its address is a placeholder until the packages are published.
const MAINTAINER: &str = "The Abide authors <maintainers@abide.invalid>";

/// Returns the changelog of the Debian package: its version, at the time of the commit.
fn changelog(release: &Release) -> Result<String, String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", "--date"]).arg(format!("@{}", release.epoch));
    let date = check::output(&mut date)?;
    let Release { name, version, .. } = release;
    Ok(format!(
        "{name} ({version}) stable; urgency=medium\n\n  * Version {version}.\n\n -- {MAINTAINER}  {}\n",
        date.trim()
    ))
}

/// Lets systemd read the units again.
const RELOAD_UNITS: &str = "\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
";

/// Stops the server before its program and its units are removed. An upgrade leaves it running, with the former program.
const STOP_UNITS: &str = "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl stop abide.socket abide.service || true
fi
";

/// The description of the package, and what is run when it is installed or removed.
fn control(release: &Release, architecture: &str, kilobytes: usize) -> Result<Vec<u8>, String> {
    let control = format!(
        "Package: {}\n\
         Version: {}\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {kilobytes}\n\
         Depends: libc6 (>= 2.{}), libgcc-s1 | libgcc1, ca-certificates\n\
         Suggests: bubblewrap, git\n\
         Section: database\n\
         Priority: optional\n\
         Description: durable session engine for AI agents\n \
         One program and one SQLite file: sessions, tool calls and approvals are rows,\n \
         every change is durable before it is answered, and queries are live.\n",
        release.name, release.version, release.glibc_minor,
    );
    let mut archive = Archive::default();
    archive.file("control", 0o644, control);
    archive.file("postinst", 0o755, RELOAD_UNITS);
    archive.file("prerm", 0o755, STOP_UNITS);
    archive.file("postrm", 0o755, RELOAD_UNITS);
    archive.to_tar_gz(release.epoch).map_err(|why| why.to_string())
}

/// Unpacks the Debian package into a folder, and uses its program.
pub(super) fn check_deb(release: &Release, files: &[PathBuf]) -> Result<Option<Duration>, String> {
    let [file] = files else {
        return Err(format!("one package was expected, not {}", files.len()));
    };
    let folder = check::empty_folder()?;
    let field = check::output(Command::new("dpkg-deb").arg("--field").arg(file).arg("Version"))?;
    if field.trim() != release.version {
        return Err(format!("the Debian package has version {}", field.trim()));
    }
    let root = folder.path();
    let start = Instant::now();
    check::output(Command::new("dpkg-deb").arg("--extract").arg(file).arg(root))?;
    let service = "usr/lib/systemd/system/abide.service";
    let examples = EXAMPLES.map(|file| format!("usr/share/doc/{}/examples/{file}", release.name));
    let others = ["usr/share/man/man1/abide.1.gz", COMPLETIONS[0].2, service];
    for path in examples.iter().map(String::as_str).chain(others) {
        if !root.join(path).is_file() {
            return Err(format!("the Debian package has no {path}"));
        }
    }
    check::exercise(release, &Installed::new(root.join("usr/bin/abide"), root), start)
}

/// The completions of a shell, as the program prints them.
fn completions(release: &Release, shell: &str) -> Result<String, String> {
    check::output(Command::new(&release.binary).args(["completions", shell]))
}

/// The manual pages, as the program writes them.
fn manual(release: &Release) -> Result<Vec<(String, Vec<u8>)>, String> {
    let folder = check::empty_folder()?;
    check::output(Command::new(&release.binary).arg("manual").arg(folder.path()))?;
    read_files(folder.path())
}

/// The files of a folder, with their names.
fn read_files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(describe(folder))? {
        let path = entry.map_err(describe(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push((name, fs::read(&path).map_err(describe(&path))?));
    }
    Ok(files)
}
