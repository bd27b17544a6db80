//! Rule: every link between the Markdown pages leads somewhere, and every page of `docs/` is in the book.
//!
//! It knows inline links (`[text](target)`), which are the only form that leads from page to page, and headings as GitHub and
//! mdBook turn them into anchors. In the pages that name files it also checks that those files exist.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::source::File;

/// The table of contents of the book.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// The page that names each Rust file by its whole path.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Pages whose file names in backticks must exist.
const MAPS: [&str; 4] =
    [ARCHITECTURE, "CONTRIBUTING.md", "docs/features.md", "docs/own-modules.md"];

/// Whether a file is one of the pages: the root's, and those of `docs/`.
pub(crate) fn is_page(path: &str) -> bool {
    path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"))
}

pub(crate) fn check(files: &[File], paths: &[String]) -> Vec<Finding> {
    let pages: Vec<&File> = files.iter().filter(|file| is_page(&file.path)).collect();
    let mut findings = Vec::new();
    for page in &pages {
        for (at, target) in links(&page.text) {
            if let Some(what) = broken(&page.path, &target, &pages, paths) {
                findings.push(Finding::new(format!("{}:{at}", page.path), what));
            }
        }
        findings.extend(repeated_headings(page));
        if MAPS.contains(&page.path.as_str()) {
            findings.extend(missing_files(page, paths));
        }
    }
    if let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) {
        let mut listed = BTreeSet::new();
        for (at, target) in links(&summary.text) {
            let page = resolve(SUMMARY, &target);
            if !listed.insert(page.clone()) {
                // mdBook refuses that.
                let what = format!("lists {page} twice");
                findings.push(Finding::new(format!("{SUMMARY}:{at}"), what));
            }
        }
        let forgotten =
            pages.iter().filter(|page| page.path != SUMMARY && !listed.contains(&page.path));
        findings
            .extend(forgotten.map(|page| Finding::new(&page.path, "is not in docs/SUMMARY.md")));
    }
    findings
}

/// The target of every link outside of code, with its line.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in prose(text) {
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for after in plain.split("](").skip(1) {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            found.push((at, target.to_owned()));
        }
    }
    found
}

/// The lines outside of fenced blocks, with their numbers.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((at + 1, line))
    })
}

fn broken(from: &str, target: &str, pages: &[&File], paths: &[String]) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { from.to_owned() } else { resolve(from, file) };
    if !exists(&path, paths) {
        return Some(format!("links to {path}, which does not exist"));
    }
    let page = pages.iter().find(|page| page.path == path)?;
    let known = anchor.is_empty() || anchors(&page.text).contains(anchor);
    (!known).then(|| format!("links to {path}#{anchor}, and {path} has no such heading"))
}

/// Whether it is a file, or a folder of one.
fn exists(path: &str, paths: &[String]) -> bool {
    let path = path.trim_end_matches('/');
    paths.iter().any(|file| {
        file == path || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
    })
}

/// A relative path from the folder of a page, relative to the root.
pub(crate) fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// A heading that a page has twice: links reach only the first, and one of the sections is usually a copy.
fn repeated_headings(page: &File) -> Vec<Finding> {
    let mut known = BTreeSet::new();
    let headings = prose(&page.text).filter(|(_, line)| line.starts_with('#'));
    let repeated = headings.filter(|(_, line)| !known.insert(anchor(line.trim_start_matches('#'))));
    repeated
        .map(|(at, line)| {
            Finding::new(format!("{}:{at}", page.path), format!("has the heading `{line}` twice"))
        })
        .collect()
}

/// The anchors of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings.map(|heading| anchor(heading.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Names such as `engine/src/commit/writer.rs` or `docs/live.md`, which must exist.
fn missing_files(page: &File, paths: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in prose(&page.text) {
        let spans = line.split('`').skip(1).step_by(2).filter(|span| {
            let is_path =
                span.contains('/') || (page.path == ARCHITECTURE && span.ends_with(".rs"));
            is_path
                && !span.starts_with(['.', '/'])
                && span.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c))
                && [".rs", ".md", ".toml", "/"].iter().any(|end| span.ends_with(end))
        });
        for span in spans.filter(|span| !exists(span, paths)) {
            let place = format!("{}:{at}", page.path);
            findings.push(Finding::new(place, format!("names {span}, which does not exist")));
        }
    }
    findings
}
