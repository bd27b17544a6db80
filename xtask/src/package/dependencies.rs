//! The packages that are in the program: their licences, and the software bill of materials (SBOM).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{
    DependencyKind, Metadata, MetadataCommand, Node, NodeDep, Package, PackageId,
};
use serde_json::{Value as JsonValue, json};

use super::release::describe;

/// The beginnings of the names of files with licences, in capitals.
const LICENCE_FILES: [&str; 5] = ["COPYING", "LICENCE", "LICENSE", "NOTICE", "UNLICENSE"];

/// The packages that the program `abide` is built from, without those that only run while it is built.
#[derive(Debug)]
pub(super) struct Dependencies {
    /// The program itself.
    program: Package,
    /// All others, each with the ids of the packages that it uses.
    others: Vec<(Package, Vec<PackageId>)>,
    /// The ids that the program uses itself.
    direct: Vec<PackageId>,
}

impl Dependencies {
    /// Reads them from cargo, for a platform.
    pub(super) fn read(root: &Path, triple: &str) -> Result<Dependencies, String> {
        let options = ["--locked", "--filter-platform", triple].map(str::to_owned);
        let metadata = MetadataCommand::new()
            .manifest_path(root.join("Cargo.toml"))
            .other_options(options)
            .exec()
            .map_err(|why| format!("cargo metadata: {why}"))?;
        let Metadata { packages, workspace_members, resolve, .. } = metadata;
        let resolve = resolve.ok_or("cargo metadata has no graph of dependencies")?;
        let nodes: BTreeMap<&PackageId, &Node> =
            resolve.nodes.iter().map(|node| (&node.id, node)).collect();
        let program = packages
            .iter()
            .find(|it| it.name == "abide" && workspace_members.contains(&it.id))
            .ok_or("there is no package abide")?
            .clone();
        let direct = linked_packages(&nodes, &program.id);
        let mut found = BTreeSet::from([program.id.clone()]);
        let mut pending = direct.clone();
        while let Some(id) = pending.pop() {
            if found.insert(id.clone()) {
                pending.extend(linked_packages(&nodes, &id));
            }
        }
        let mut others: Vec<(Package, Vec<PackageId>)> = packages
            .into_iter()
            .filter(|it| found.contains(&it.id) && it.id != program.id)
            .map(|it| {
                let uses = linked_packages(&nodes, &it.id);
                (it, uses)
            })
            .collect();
        others.sort_by_key(|(package, _)| url(package));
        Ok(Dependencies { program, others, direct })
    }

    /// Returns the texts of all licences, each once, with the packages that it is about.
    pub(super) fn licences(&self) -> Result<String, String> {
        let mut list = String::new();
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        // The packages of this workspace are under the licences of the project.
        for (package, _) in self.others.iter().filter(|(package, _)| package.source.is_some()) {
            let name = format!("{} {}", package.name, package.version);
            let _ = writeln!(list, "{name}: {}", licence(package));
            let Some(folder) = package.manifest_path.parent() else { continue };
            // A package that links a library has its source, which other people have written, in a folder below.
            let has_library = package.links.is_some();
            for path in licence_files(folder.as_std_path(), has_library)? {
                let text = fs::read(&path).map_err(describe(&path))?;
                let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
                texts.entry(text.trim().to_owned()).or_default().insert(name.clone());
            }
        }
        let mut all = format!(
            "abide contains these packages, each under its own licence, and SQLite, which is in the public domain.\n\n{list}"
        );
        for (text, names) in texts {
            let names = names.into_iter().collect::<Vec<_>>().join(", ");
            let _ = write!(all, "\n{}\n{names}\n\n{text}\n", "=".repeat(80));
        }
        Ok(all)
    }

    /// Returns the bill of materials, in the format CycloneDX 1.5. `sha256` is the digest of the program.
    pub(super) fn sbom(&self, sha256: &str) -> JsonValue {
        let urls: BTreeMap<&PackageId, String> =
            self.others.iter().map(|(package, _)| (&package.id, url(package))).collect();
        let components: Vec<JsonValue> =
            self.others.iter().map(|(package, _)| component(package, "library")).collect();
        let mut program = component(&self.program, "application");
        program["hashes"] = json!([{"alg": "SHA-256", "content": sha256}]);
        let mut dependencies = vec![edges(&self.program, &self.direct, &urls)];
        for (package, uses) in &self.others {
            dependencies.push(edges(package, uses, &urls));
        }
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {"component": program},
            "components": components,
            "dependencies": dependencies,
        })
    }
}

/// Returns the files with licences in a folder, and in the folders below it if they count.
fn licence_files(folder: &Path, is_deep: bool) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(describe(folder))? {
        let entry = entry.map_err(describe(folder))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type().map_err(describe(&path))?.is_dir() {
            if is_deep {
                files.extend(licence_files(&path, is_deep)?);
            }
        } else if path.is_file() && LICENCE_FILES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the packages that a package uses in the program.
fn linked_packages(nodes: &BTreeMap<&PackageId, &Node>, id: &PackageId) -> Vec<PackageId> {
    let deps = nodes.get(id).map(|node| node.deps.as_slice()).unwrap_or_default();
    deps.iter().filter(|dep| is_linked(dep)).map(|dep| dep.pkg.clone()).collect()
}

/// Returns the entry of a package in the graph of the bill of materials.
fn edges(package: &Package, uses: &[PackageId], urls: &BTreeMap<&PackageId, String>) -> JsonValue {
    let used: BTreeSet<&String> = uses.iter().filter_map(|id| urls.get(id)).collect();
    json!({"ref": url(package), "dependsOn": used})
}

/// Whether a dependency is in the program, as opposed to its build script or its tests.
fn is_linked(dep: &NodeDep) -> bool {
    dep.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
}

fn component(package: &Package, kind: &str) -> JsonValue {
    json!({
        "type": kind,
        "bom-ref": url(package),
        "name": package.name.to_string(),
        "version": package.version.to_string(),
        "licenses": [{"expression": licence(package)}],
        "purl": url(package),
    })
}

/// The package URL, which names it in other tools.
fn url(package: &Package) -> String {
    // The build metadata of a version has a `+`.
    let version = package.version.to_string().replace('+', "%2B");
    format!("pkg:cargo/{}@{version}", package.name)
}

/// The licence as an SPDX expression. Old packages write `MIT/Apache-2.0`.
fn licence(package: &Package) -> String {
    package.license.as_deref().unwrap_or("NOASSERTION").replace('/', " OR ").replace("  ", " ")
}
