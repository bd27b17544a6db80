//! Programs of `PATH` that a sandbox cannot start: version managers such as pyenv, nvm and rustup keep them below the home
//! folder, which sandboxes do not read.

use std::path::{Path, PathBuf};

use crate::environment::Environment;

/// Returns the paths below the home folder that programs of `PATH` need and that are not among the readable ones, as
/// settings for `readable`. Folders that may hold secrets are proposed in part.
#[must_use]
pub fn unreadable_on_path(environment: &Environment, readable: &[PathBuf]) -> Vec<PathBuf> {
    let home = environment.value("HOME").map(Path::new).filter(|home| home.is_absolute());
    let (Some(home), Some(path)) = (home, environment.value("PATH")) else { return Vec::new() };
    let below_home = std::env::split_paths(path).filter(|folder| folder.is_dir());
    let below_home = below_home.filter_map(|folder| {
        let below = folder.strip_prefix(home).ok()?.to_owned();
        Some((below.components().next()?.as_os_str().to_owned(), folder))
    });
    let mut needed: Vec<PathBuf> = Vec::new();
    for (first, folder) in below_home {
        match first.to_str() {
            // Cargo's folder has the tokens of registries. Its programs start those of rustup.
            Some(".cargo") => needed.extend([folder, home.join(".rustup")]),
            // The folder of programs beside those of data.
            Some(".local" | "bin") => needed.push(folder),
            _ => needed.push(home.join(first)),
        }
    }
    needed.retain(|path| path.is_dir() && !readable.iter().any(|it| path.starts_with(it)));
    needed.sort();
    needed.dedup();
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_managers_below_home_are_proposed() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let root = home.path();
        for folder in [".pyenv/shims", ".cargo/bin", ".rustup", ".local/bin", ".nvm/v20/bin"] {
            std::fs::create_dir_all(root.join(folder)).expect("it can be created");
        }
        let on_path = [".pyenv/shims", ".cargo/bin", ".local/bin", ".nvm/v20/bin", ".gone/bin"];
        let path: Vec<String> =
            on_path.iter().map(|it| root.join(it).display().to_string()).collect();
        let variables = [
            ("HOME".to_owned(), root.display().to_string()),
            ("PATH".to_owned(), format!("{}:/usr/bin", path.join(":"))),
        ];
        let environment: Environment = variables.into_iter().collect();
        let proposed = |readable: &[PathBuf]| -> Vec<String> {
            let found = unreadable_on_path(&environment, readable);
            let below = found.iter().filter_map(|path| path.strip_prefix(root).ok());
            below.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(proposed(&[]), [".cargo/bin", ".local/bin", ".nvm", ".pyenv", ".rustup"]);
        assert_eq!(
            proposed(&[root.join(".pyenv"), root.join(".cargo")]),
            [".local/bin", ".nvm", ".rustup"]
        );
        assert_eq!(proposed(&[root.to_owned()]), [""; 0]);
        assert_eq!(unreadable_on_path(&Environment::default(), &[]), Vec::<PathBuf>::new());
    }
}
