//! Rule: the files that some pages name in backticks exist.

use super::Finding;
use super::source::File;

/// The page that names each Rust file by its whole path.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

const PAGES: [&str; 3] = [ARCHITECTURE, "CONTRIBUTING.md", "docs/features.md"];

/// Returns a finding for each missing file. `paths` are the files of the repository.
pub(crate) fn check(page: &File, paths: &[String]) -> Vec<Finding> {
    if !PAGES.contains(&page.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut is_fenced = false;
    for (at, line) in page.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        }
        if is_fenced {
            continue;
        }
        let spans = line.split('`').skip(1).step_by(2);
        let names = spans.filter(|span| is_file_name(span, page.path == ARCHITECTURE));
        for name in names.filter(|name| !exists(name, paths)) {
            let place = format!("{}:{}", page.path, at + 1);
            findings.push(Finding::new(place, format!("names {name}, which does not exist")));
        }
    }
    findings
}

/// Returns `true` for `engine/src/commit/writer.rs` or `docs/live.md`, and for `writer.rs` where every path is whole.
fn is_file_name(span: &str, whole_paths: bool) -> bool {
    let is_path = span.contains('/') || (whole_paths && span.ends_with(".rs"));
    is_path
        && !span.starts_with(['.', '/'])
        && span.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c))
        && [".rs", ".md", ".toml", "/"].iter().any(|end| span.ends_with(end))
}

/// Returns `true` for a file, or a folder with a file.
fn exists(path: &str, paths: &[String]) -> bool {
    let path = path.trim_end_matches('/');
    paths.iter().any(|file| {
        file == path || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
    })
}
