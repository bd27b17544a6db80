//! Rule: all packages have the version of the workspace, and pages give them the name that `Cargo.toml` has.

use super::Finding;
use super::source::File;

/// The files that repeat the version, each with the text around it.
const VERSIONS: [(&str, &str, &str); 11] = [
    ("client-sdk/python/src/abide/__init__.py", "__version__ = \"", "\""),
    ("client-sdk/typescript/package.json", "\n  \"version\": \"", "\""),
    ("client-sdk/typescript/package-lock.json", "\n  \"version\": \"", "\""),
    ("client-sdk/typescript/adapters/ai-sdk/package.json", "\n  \"version\": \"", "\""),
    ("client-sdk/typescript/adapters/ai-sdk/package.json", "\"@abide/client\": \"^", "\""),
    ("client-sdk/typescript/adapters/openai-agents/package.json", "\n  \"version\": \"", "\""),
    ("client-sdk/typescript/adapters/openai-agents/package.json", "\"@abide/client\": \"^", "\""),
    ("deploy/Dockerfile", "_", "_${TARGETARCH}.deb"),
    ("deploy/compose.yaml", ":", "\n"),
    ("deploy/kubernetes.yaml", ":", "\n"),
    ("docs/operation.md", "_", "_amd64.deb\n"),
];

/// The files that name the packages, each with the words around the name.
const NAMES: [(&str, &str, &str); 12] = [
    ("deploy/Dockerfile", "/packages/", "_"),
    ("deploy/Dockerfile", "/usr/share/doc/", "/*\""),
    ("deploy/compose.yaml", "image: ", ":"),
    ("deploy/kubernetes.yaml", "image: ", ":"),
    ("docs/install.md", "npx ", " demo\n"),
    ("docs/install.md", "uvx ", " demo\n"),
    ("docs/install.md", "npm install @abide/client@npm:", "-client\n"),
    ("docs/install.md", "pip install ", "-client\n"),
    ("docs/operation.md", "./", "_"),
    ("docs/operation.md", "/usr/share/doc/", "/examples"),
    ("package/npm/README.md", "npx ", " demo\n"),
    ("package/python/README.md", "uvx ", " demo\n"),
];

/// Returns a finding for each other version or name, and for each file without one.
pub(crate) fn check(files: &[File], version: &str, name: &str) -> Vec<Finding> {
    let versions = VERSIONS.iter().map(|(path, before, after)| (path, before, after, version));
    let names = NAMES.iter().map(|(path, before, after)| (path, before, after, name));
    let mut findings = Vec::new();
    for (path, before, after, value) in versions.chain(names) {
        let expected = format!("{before}{value}{after}");
        let file = files.iter().find(|file| file.path == *path);
        if file.is_none_or(|file| !file.text.contains(&expected)) {
            let what = format!("does not contain `{}`, as Cargo.toml has it", expected.trim());
            findings.push(Finding::new(path, what));
        }
    }
    findings
}
