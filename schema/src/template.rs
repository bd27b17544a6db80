//! Templates of prompts: texts with named variables, `{{name}}`. Everything else between braces is text.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;

/// The values of variables, by name.
pub type Values = BTreeMap<String, String>;

/// Why a template cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Variables have no value.
    #[error("the prompt needs a value for {}", .0.join(", "))]
    Missing(Vec<String>),
    /// There are values for variables that the template does not have.
    #[error("the prompt has no variable {name}; it has {}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// The variables of the template.
        known: Vec<String>,
    },
    /// The text would be too long.
    #[error("with these values the prompt has more than {} bytes", limits::PROMPT_BYTES)]
    TooLong,
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns the variables of a template, in the order of their first use.
#[must_use]
pub fn variables(template: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let names = parts(template).filter_map(|part| match part {
        Part::Variable(name) => Some(name),
        Part::Text(_) => None,
    });
    names.filter(|name| seen.insert(*name)).map(str::to_owned).collect()
}

/// Returns the text of a template with these values. A value is text: variables in it stay as they are.
///
/// # Errors
/// [`TemplateError`]. Each variable needs a value, and each value a variable.
pub fn render(template: &str, values: &Values) -> Result<String, TemplateError> {
    let known = variables(template);
    let missing: Vec<String> =
        known.iter().filter(|name| !values.contains_key(*name)).cloned().collect();
    if !missing.is_empty() {
        return Err(TemplateError::Missing(missing));
    }
    if let Some(name) = values.keys().find(|name| !known.contains(name)) {
        return Err(TemplateError::Unknown { name: name.clone(), known });
    }
    let mut text = String::new();
    for part in parts(template) {
        let part = match part {
            Part::Text(part) => part,
            Part::Variable(name) => values.get(name).map_or("", String::as_str),
        };
        // A long value can be used many times.
        if text.len() + part.len() > limits::PROMPT_BYTES {
            return Err(TemplateError::TooLong);
        }
        text.push_str(part);
    }
    Ok(text)
}

enum Part<'a> {
    Text(&'a str),
    Variable(&'a str),
}

/// Splits a template at its variables.
fn parts(template: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = template;
    let mut variable = None;
    std::iter::from_fn(move || {
        if let Some(name) = variable.take() {
            return Some(Part::Variable(name));
        }
        if rest.is_empty() {
            return None;
        }
        let mut from = 0;
        while let Some(at) = rest[from..].find("{{").map(|at| from + at) {
            if let Some((name, length)) = variable_at(&rest[at..]) {
                let before = &rest[..at];
                rest = &rest[at + length..];
                if before.is_empty() {
                    return Some(Part::Variable(name));
                }
                variable = Some(name);
                return Some(Part::Text(before));
            }
            from = at + 1;
        }
        let text = rest;
        rest = "";
        Some(Part::Text(text))
    })
}

/// Returns the variable at the beginning of a text that begins with `{{`, and the length of its mention.
fn variable_at(text: &str) -> Option<(&str, usize)> {
    let inner = text.get(2..)?;
    // A longer name is none, and the search must not read the whole text at each pair of braces.
    let near = &inner[..inner.floor_char_boundary(limits::PROMPT_VARIABLE_BYTES + 16)];
    let end = near.find("}}")?;
    let name = near[..end].trim_matches(' ');
    let mut letters = name.chars();
    let begins = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let fits = begins && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    (fits && name.len() <= limits::PROMPT_VARIABLE_BYTES).then_some((name, 2 + end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, values: &[(&str, &str)], expected: &str) {
        let values = values.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let names = variables(template).join(" ");
        let shown = match render(template, &values) {
            Ok(text) => format!("[{names}] {text}"),
            Err(error) => format!("[{names}] error: {error}"),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn variables_are_replaced_once() {
        let both = [("name", "Ann"), ("firm", "{{name}} & Co")];
        check("Hi {{name}} of {{ firm }}.", &both, "[name firm] Hi Ann of {{name}} & Co.");
        check("{{a}}{{a}}", &[("a", "x")], "[a] xx");
        check("", &[], "[] ");
    }

    #[test]
    fn other_braces_are_text() {
        for text in ["{a} {{}} {{ }} {{1a}} {{a-b}} {{a", "{{{", "é{{é}}", "}} {{", "{{a\n}}"] {
            assert_eq!(render(text, &Values::new()).as_deref(), Ok(text));
        }
        check("{{{a}}}", &[("a", "x")], "[a] {x}");
        let long = format!("{{{{{}}}}}", "a".repeat(limits::PROMPT_VARIABLE_BYTES + 1));
        assert_eq!(render(&long, &Values::new()).as_deref(), Ok(&*long));
    }

    #[test]
    fn values_and_variables_must_match() {
        check(
            "{{a}} {{b}} {{c}}",
            &[("b", "x")],
            "[a b c] error: the prompt needs a value for a, c",
        );
        check("x", &[("a", "x")], "[] error: the prompt has no variable a; it has none");
        check(
            "{{a}}",
            &[("a", "x"), ("b", "y")],
            "[a] error: the prompt has no variable b; it has a",
        );
    }

    /// A template of 500 KB that uses a value of 1 MB at each fifth byte would fill the memory.
    #[test]
    fn the_text_is_bounded() {
        let template = "{{a}}".repeat(100_000);
        let values = Values::from([("a".to_owned(), "x".repeat(1_000_000))]);
        assert_eq!(render(&template, &values), Err(TemplateError::TooLong));
    }
}
