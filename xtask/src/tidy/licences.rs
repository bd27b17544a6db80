//! Rule: the licences of all packages permit the use of Abide under its own licence.

use cargo_metadata::Metadata;

use super::finding::Finding;

/// Licences of which each is sufficient by itself.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    // A data licence, for the root certificates of browsers. It only requires its text to be included.
    "CDLA-Permissive-2.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

pub(crate) fn check(metadata: &Metadata) -> Vec<Finding> {
    let packages = metadata.packages.iter();
    packages
        .filter_map(|package| {
            let what = refusal(package.license.as_deref())?;
            Some(Finding::new(format!("{} {}", package.name, package.version), what))
        })
        .collect()
}

/// Why a licence expression is not permitted, if so.
pub(crate) fn refusal(licence: Option<&str>) -> Option<String> {
    let Some(licence) = licence else {
        return Some("has no licence".to_owned());
    };
    match Expression::parse(licence) {
        Some(true) => None,
        Some(false) => Some(format!("its licence `{licence}` is not on the list")),
        None => Some(format!("its licence `{licence}` is not a valid SPDX expression")),
    }
}

/// A parser for SPDX expressions. `AND` binds more tightly than `OR`; the `/` of old manifests means `OR`.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Expression<'a> {
    /// Whether the expression is permitted; `None` if it is invalid.
    fn parse(text: &'a str) -> Option<bool> {
        let mut expression = Self { words: words(text).into_iter().peekable() };
        let allowed = expression.any()?;
        expression.words.next().is_none().then_some(allowed)
    }

    fn any(&mut self) -> Option<bool> {
        let mut allowed = self.all()?;
        while self.words.next_if(|word| ["OR", "/"].contains(word)).is_some() {
            allowed |= self.all()?;
        }
        Some(allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut allowed = self.one()?;
        while self.words.next_if_eq(&"AND").is_some() {
            allowed &= self.one()?;
        }
        Some(allowed)
    }

    fn one(&mut self) -> Option<bool> {
        let word = self.words.next()?;
        if word == "(" {
            let allowed = self.any()?;
            return (self.words.next() == Some(")")).then_some(allowed);
        }
        if ["OR", "AND", "WITH", "/", ")"].contains(&word) {
            return None;
        }
        let name = match self.words.next_if_eq(&"WITH") {
            Some(_) => format!("{word} WITH {}", self.words.next()?),
            None => word.to_owned(),
        };
        Some(ALLOWED.contains(&name.as_str()))
    }
}

/// Names, operators and parentheses.
fn words(text: &str) -> Vec<&str> {
    let ends = |c: char| c == ' ' || "()/".contains(c);
    text.split_inclusive(ends)
        .flat_map(|piece| match piece.strip_suffix(ends) {
            Some(word) => [word, piece[word.len()..].trim()],
            None => [piece, ""],
        })
        .filter(|word| !word.is_empty())
        .collect()
}
