//! Rule: the files of a crate do not import each other in a cycle.
//!
//! A file imports another one if its code outside of tests names an item that the other file defines. Re-exports are
//! followed to the definition. Declaring a module and re-exporting its items is not an import. This reads Rust only
//! as far as paths go: names that a macro makes, and methods, are not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::source::{Source, is_word};

/// The files of a crate, by module path; the root has the empty path.
type Modules = BTreeMap<Vec<String>, Module>;

/// The facts about one file.
#[derive(Default)]
struct Module {
    file: String,
    /// Names that a `use` of this file introduces, with their path.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use …::*`.
    globs: Vec<Vec<String>>,
    /// Names of items that this file defines.
    defines: BTreeSet<String>,
    /// Paths in the code, without those of re-exports that the file itself does not use.
    mentions: BTreeSet<Vec<String>>,
}

/// From one file to another: the names of the second that the first uses.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<&'a str>>>;

/// Files that import each other.
struct Cycle {
    files: usize,
    /// One line for each import.
    ties: String,
}

/// A `use` of one name.
struct Import {
    path: Vec<String>,
    /// `None` for a glob.
    name: Option<String>,
    public: bool,
}

/// Looks for cycles in each crate. A finding lists them, with the names that tie them.
pub(crate) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.lines.iter().all(|line| line.test)) {
        if let Some((root, module)) = module_path(&source.path) {
            crates.entry(root).or_default().insert(module, read(source));
        }
    }
    for modules in crates.values_mut().filter(|modules| !modules.contains_key(&Vec::new())) {
        if let Some(main) = modules.remove(&vec!["main".to_owned()]) {
            modules.insert(Vec::new(), main);
        }
    }
    crates.iter().filter_map(|(root, modules)| finding(root, &cycles(modules))).collect()
}

fn finding(root: &str, cycles: &[Cycle]) -> Option<Finding> {
    if cycles.is_empty() {
        return None;
    }
    let files: usize = cycles.iter().map(|cycle| cycle.files).sum();
    let ties: String = cycles.iter().map(|cycle| cycle.ties.as_str()).collect();
    Some(Finding::new(root, format!("{files} files import each other in cycles:{ties}")))
}

/// The crate's source folder and the module that a file contains. `main.rs` is the root only where there is no
/// `lib.rs`.
fn module_path(path: &str) -> Option<(&str, Vec<String>)> {
    let at = path.find("/src/")? + "/src/".len();
    let (root, rest) = path.split_at(at);
    let module = rest.strip_suffix(".rs")?;
    match module {
        "lib" => Some((root, Vec::new())),
        _ => Some((root, module.split('/').map(str::to_owned).collect())),
    }
}

fn read(source: &Source) -> Module {
    let lines = source.lines.iter().filter(|line| !line.test);
    let code: String = lines.flat_map(|line| [line.code.as_str(), "\n"]).collect();
    let (uses, rest) = split_uses(&code);
    let mut module = Module {
        file: source.path.clone(),
        defines: definitions(&rest),
        mentions: paths(&rest),
        ..Module::default()
    };
    let single: BTreeSet<String> =
        module.mentions.iter().filter_map(|path| path.first().cloned()).collect();
    for import in uses {
        let Some(name) = import.name else {
            module.globs.push(import.path);
            continue;
        };
        if !import.public || single.contains(&name) {
            module.mentions.insert(import.path.clone());
        }
        module.imports.insert(name, import.path);
    }
    module
}

/// The `use` items, and the code without them.
fn split_uses(code: &str) -> (Vec<Import>, String) {
    let mut imports = Vec::new();
    let mut rest = String::new();
    let mut at = 0;
    for (found, _) in code.match_indices("use ") {
        if found < at || code[..found].ends_with(is_word) {
            continue;
        }
        let Some(length) = code[found..].find(';') else { break };
        let line_start = code[..found].rfind(['\n', ';', '}']).map_or(0, |start| start + 1);
        let public = code[line_start..found].trim_start().starts_with("pub");
        rest.push_str(&code[at..found]);
        expand(&code[found + 4..found + length], &[], public, &mut imports);
        at = found + length + 1;
    }
    rest.push_str(&code[at..]);
    (imports, rest)
}

/// Expands `a::{b, c as d}` to one import for each name.
fn expand(tree: &str, prefix: &[String], public: bool, imports: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let prefix = [prefix, &segments(&tree[..open])].concat();
        let inner = tree[open + 1..].trim_end().strip_suffix('}').unwrap_or(&tree[open + 1..]);
        split_list(inner).into_iter().for_each(|part| expand(part, &prefix, public, imports));
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(p, a)| (p, Some(a.trim())));
    let mut path = [prefix, &segments(path)].concat();
    let Some(last) = path.last().cloned() else { return };
    let name = match last.as_str() {
        "*" | "self" => {
            path.pop().and_then(|last| (last == "self").then(|| path.last().cloned())?)
        }
        _ => Some(alias.unwrap_or(&last).to_owned()),
    };
    imports.push(Import { path, name, public });
}

/// Splits at the commas outside of braces.
fn split_list(list: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// The names after the words that start an item.
fn definitions(code: &str) -> BTreeSet<String> {
    const ITEMS: [&str; 9] =
        ["const", "enum", "fn", "macro_rules!", "mod", "static", "struct", "trait", "type"];
    let words: Vec<&str> =
        code.split(|c: char| !is_word(c) && c != '!').filter(|word| !word.is_empty()).collect();
    let pairs = words.windows(2).filter(|pair| ITEMS.contains(&pair[0]));
    pairs.map(|pair| pair[1].to_owned()).collect()
}

/// Every path in the code, including those of one segment.
fn paths(code: &str) -> BTreeSet<Vec<String>> {
    let is_path = |c: char| is_word(c) || c == ':';
    let candidates = code.split(|c: char| !is_path(c));
    candidates.map(segments).filter(|path| !path.is_empty()).collect()
}

/// The strongly connected components with more than one file.
fn cycles(modules: &Modules) -> Vec<Cycle> {
    let mut edges = Edges::new();
    for (path, module) in modules {
        for mention in &module.mentions {
            let Some((target, name)) = resolve(modules, path, mention, 0) else { continue };
            if target != module.file {
                edges.entry(&module.file).or_default().entry(target).or_default().insert(name);
            }
        }
    }
    let reachable: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reach(&edges, from))).collect();
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for (from, reached) in &reachable {
        let files: BTreeSet<&str> = reached
            .iter()
            .copied()
            .filter(|to| reachable.get(*to).is_some_and(|back| back.contains(from)))
            .collect();
        if files.len() > 1 && seen.insert(files.clone()) {
            cycles.push(cycle(&files, &edges));
        }
    }
    cycles
}

fn cycle(files: &BTreeSet<&str>, edges: &Edges<'_>) -> Cycle {
    let mut ties = String::new();
    for from in files {
        for (to, names) in edges[from].iter().filter(|(to, _)| files.contains(*to)) {
            let names: Vec<&str> = names.iter().copied().collect();
            ties.push_str(&format!("\n    {from} uses {} of {to}", names.join(", ")));
        }
    }
    Cycle { files: files.len(), ties: ties + "\n" }
}

/// Every file that can be reached from one.
fn reach<'a>(edges: &Edges<'a>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        let next = edges.get(at).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.filter(|to| reached.insert(**to)));
    }
    reached
}

/// The file that defines what a path names in a module, and the name. `None` for items of other crates and for
/// modules.
fn resolve<'a>(
    modules: &'a Modules,
    module: &[String],
    path: &'a [String],
    depth: usize,
) -> Option<(&'a str, &'a str)> {
    const REEXPORTS: usize = 16;
    let (first, rest) = path.split_first()?;
    if depth > REEXPORTS {
        return None;
    }
    match first.as_str() {
        "crate" => return resolve_in(modules, &[], rest, depth),
        "self" => return resolve_in(modules, module, rest, depth),
        "super" => {
            let parent = &module[..module.len().checked_sub(1)?];
            return if rest.first().is_some_and(|next| next == "super") {
                resolve(modules, parent, rest, depth)
            } else {
                resolve_in(modules, parent, rest, depth)
            };
        }
        _ => {}
    }
    resolve_in(modules, module, path, depth)
}

/// Like [`resolve`], for a path that starts at the items of a module.
fn resolve_in<'a>(
    modules: &'a Modules,
    module: &[String],
    path: &'a [String],
    depth: usize,
) -> Option<(&'a str, &'a str)> {
    let (first, rest) = path.split_first()?;
    let child = [module, std::slice::from_ref(first)].concat();
    if modules.contains_key(&child) {
        return resolve_in(modules, &child, rest, depth);
    }
    let of = modules.get(module)?;
    if let Some(import) = of.imports.get(first) {
        if import.len() == 1 && import[0] == *first {
            return None;
        }
        return match resolve(modules, module, import, depth + 1) {
            Some(found) => Some(found),
            None => {
                let target = module_of(modules, module, import)?;
                resolve_in(modules, &target, rest, depth + 1)
            }
        };
    }
    if of.defines.contains(first) {
        return Some((&of.file, first));
    }
    let mut globs = of.globs.iter().filter_map(|glob| module_of(modules, module, glob));
    globs.find_map(|target| resolve_in(modules, &target, path, depth + 1))
}

/// The module that a path names, if it names one of this crate.
fn module_of(modules: &Modules, module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut at = module.to_vec();
    let mut inside = false;
    for part in path {
        match part.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()?),
            name => {
                at.push(name.to_owned());
                if !modules.contains_key(&at) {
                    return None;
                }
            }
        }
        inside = true;
    }
    inside.then_some(at)
}
