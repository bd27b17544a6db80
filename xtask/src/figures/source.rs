//! Figures of the source: lines of Rust by crate, idioms, comments, and pages.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::table::Figures;
use crate::tidy::{File, Source};

/// The counts of a set of Rust files. All but `lines_with_tests` are about code that is no test.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    lines_with_tests: usize,
    lines: usize,
    code_lines: usize,
    /// Lines with a comment that is no documentation.
    comment_lines: usize,
    /// `let name = |…| …;`
    named_closures: usize,
    /// `let (a, b) = (x, y);`
    tuple_lets: usize,
    /// `let x = …;` directly after `let x = …;`
    shadowing_lets: usize,
    /// `match flag { true => …, false => … }`
    matches_on_bool: usize,
}

/// Returns the figures of all files of a tree.
pub(super) fn figures(files: &[File]) -> Result<Figures, String> {
    let manifests = files.iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    let folders: BTreeSet<&str> = manifests.collect();
    let mut crates: BTreeMap<&str, Counts> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        crates.entry(crate_folder(&file.path, &folders)).or_default().add(file)?;
    }
    let all = crates.values().fold(Counts::default(), |all, counts| all.plus(counts));
    let per_10_000 = |count: usize| rate(count, all.lines, 10_000);
    let pages: Vec<&File> = files.iter().filter(|file| file.path.ends_with(".md")).collect();
    let page_lines: usize = pages.iter().map(|page| page.text.lines().count()).sum();
    let page_bytes: usize = pages.iter().map(|page| page.text.len()).sum();

    let mut figures = vec![("lines of Rust without tests (with tests)".to_owned(), all.size())];
    figures.extend(crates.iter().map(|(folder, counts)| (format!("– {folder}"), counts.size())));
    let others = [
        ("closures bound to a name, per 10,000 lines", per_10_000(all.named_closures)),
        ("lets of a tuple, per 10,000 lines", per_10_000(all.tuple_lets)),
        ("lets that shadow the let before, per 10,000 lines", per_10_000(all.shadowing_lets)),
        ("matches on a bool, per 10,000 lines", per_10_000(all.matches_on_bool)),
        ("comments per 100 lines of code", rate(all.comment_lines, all.code_lines, 100)),
        ("lines of Markdown", page_lines.to_string()),
        ("bytes of Markdown", page_bytes.to_string()),
    ];
    figures.extend(others.map(|(name, value)| (name.to_owned(), value)));
    Ok(figures)
}

/// Returns the innermost of the folders of manifests that contains a file.
fn crate_folder<'a>(path: &'a str, folders: &BTreeSet<&str>) -> &'a str {
    let mut folder = path;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        if folders.contains(parent) {
            return parent;
        }
        folder = parent;
    }
    "(no crate)"
}

fn rate(count: usize, lines: usize, per: usize) -> String {
    // In tenths, rounded.
    let tenths = (20 * count * per + lines) / (2 * lines).max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

impl Counts {
    fn add(&mut self, file: &File) -> Result<(), String> {
        let source = Source::parse(file);
        self.lines_with_tests += source.lines.len();
        for line in source.lines.iter().filter(|line| !line.test) {
            self.lines += 1;
            let comment = line.comment.trim_start();
            // A line that is neither blank nor a comment alone. It may be inside of a string.
            if !line.text.trim().is_empty() && line.text.trim() != comment.trim_end() {
                self.code_lines += 1;
            }
            let is_documentation = comment.starts_with("///") || comment.starts_with("//!");
            if !comment.is_empty() && !is_documentation {
                self.comment_lines += 1;
            }
        }
        if source.lines.iter().any(|line| !line.test) {
            let tree = syn::parse_file(&file.text)
                .map_err(|why| format!("cannot parse {}: {why}", file.path))?;
            self.visit_file(&tree);
        }
        Ok(())
    }

    fn plus(self, other: &Counts) -> Counts {
        Counts {
            lines_with_tests: self.lines_with_tests + other.lines_with_tests,
            lines: self.lines + other.lines,
            code_lines: self.code_lines + other.code_lines,
            comment_lines: self.comment_lines + other.comment_lines,
            named_closures: self.named_closures + other.named_closures,
            tuple_lets: self.tuple_lets + other.tuple_lets,
            shadowing_lets: self.shadowing_lets + other.shadowing_lets,
            matches_on_bool: self.matches_on_bool + other.matches_on_bool,
        }
    }

    fn size(&self) -> String {
        format!("{} ({})", self.lines, self.lines_with_tests)
    }
}

/// Counts idioms, except inside of macros, whose arguments need not be Rust.
impl<'ast> Visit<'ast> for Counts {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_test = module.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
        });
        if !is_test {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        for pair in block.stmts.windows(2) {
            let name = bound_name(&pair[0]);
            if name.is_some() && name == bound_name(&pair[1]) {
                self.shadowing_lets += 1;
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        match (untyped(&local.pat), value) {
            (syn::Pat::Ident(_), Some(syn::Expr::Closure(_))) => self.named_closures += 1,
            (syn::Pat::Tuple(_), Some(syn::Expr::Tuple(_))) => self.tuple_lets += 1,
            _ => {}
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        if expression.arms.iter().any(|arm| is_bool(&arm.pat)) {
            self.matches_on_bool += 1;
        }
        visit::visit_expr_match(self, expression);
    }
}

/// Returns the name that `let name = …;` or `let name: … = …;` binds.
fn bound_name(statement: &syn::Stmt) -> Option<&syn::Ident> {
    let syn::Stmt::Local(local) = statement else { return None };
    match untyped(&local.pat) {
        syn::Pat::Ident(pattern) => Some(&pattern.ident),
        _ => None,
    }
}

fn is_bool(pattern: &syn::Pat) -> bool {
    matches!(pattern, syn::Pat::Lit(literal) if matches!(literal.lit, syn::Lit::Bool(_)))
}

fn untyped(pattern: &syn::Pat) -> &syn::Pat {
    match pattern {
        syn::Pat::Type(typed) => &typed.pat,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, File, figures, rate};

    fn count(path: &str, text: &str) -> Counts {
        let mut counts = Counts::default();
        let file = File { path: path.to_owned(), text: text.to_owned() };
        counts.add(&file).expect("valid Rust");
        counts
    }

    #[test]
    fn idioms_are_counted_in_code_only() {
        let text = "//! A file.\n\nfn f(flag: bool) -> u8 {\n    \
            let double = |x: u8| x * 2; // Why.\n    let (a, b) = (1, 2);\n    \
            let x = a;\n    // Again.\n    let x: u8 = x + b;\n    \
            let text = \"// let (c, d) = (1, 2);\";\n    \
            match flag {\n        true => double(x),\n        false => 0,\n    }\n}\n\n\
            #[cfg(test)]\nmod tests {\n    fn g() {\n        let (a, b) = (1, 2);\n    }\n}\n";
        let expected = Counts {
            lines_with_tests: 21,
            lines: 15,
            code_lines: 11,
            comment_lines: 2,
            named_closures: 1,
            tuple_lets: 1,
            shadowing_lets: 1,
            matches_on_bool: 1,
        };
        assert_eq!(count("a/src/lib.rs", text), expected);
        let test = Counts { lines_with_tests: 21, ..Counts::default() };
        assert_eq!(count("a/tests/main.rs", text), test);
    }

    #[test]
    fn a_file_belongs_to_the_nearest_crate() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("a/Cargo.toml", ""),
            file("a/src/lib.rs", "fn f() {}\n"),
            file("a/b/Cargo.toml", ""),
            file("a/b/src/x/y.rs", "fn f() {}\nfn g() {}\n"),
            file("README.md", "# A\n\nText.\n"),
        ];
        let figures = figures(&files).expect("valid Rust");
        let value = |name: &str| {
            let figure = figures.iter().find(|(other, _)| other == name);
            figure.map(|(_, value)| value.as_str())
        };
        assert_eq!(value("lines of Rust without tests (with tests)"), Some("3 (3)"));
        assert_eq!((value("– a"), value("– a/b")), (Some("1 (1)"), Some("2 (2)")));
        assert_eq!(
            (value("lines of Markdown"), value("bytes of Markdown")),
            (Some("3"), Some("11"))
        );
    }

    #[test]
    fn rates_are_rounded_to_a_tenth() {
        assert_eq!(rate(1, 3, 100), "33.3");
        assert_eq!(rate(2, 3, 100), "66.7");
        assert_eq!(rate(0, 0, 100), "0.0");
    }
}
