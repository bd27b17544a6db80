//! A Rust file, split into code, comments and literals, so that rules ignore words in strings. Not a parser: it
//! tokenizes only as far as necessary for this.

/// A text file that is committed or would be.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A file as lines.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

/// A line. `code` and `comment` have the same length as `text` in characters, with the rest blank.
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) code: String,
    pub(crate) comment: String,
    /// The line is part of a test.
    pub(crate) test: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub(crate) fn parse(file: &File) -> Self {
        let chars: Vec<char> = file.text.chars().collect();
        let kinds = classify(&chars);
        let mut lines = Vec::new();
        let mut start = 0;
        for line in file.text.lines() {
            let end = start + line.chars().count();
            let only = |kind| blank_all_but(kind, &chars[start..end], &kinds[start..end]);
            lines.push(Line {
                text: line.to_owned(),
                code: only(Kind::Code),
                comment: only(Kind::Comment),
                test: false,
            });
            // `lines` strips `\r\n` too.
            start = end + usize::from(chars.get(end) == Some(&'\r')) + 1;
        }
        mark_tests(&file.path, &mut lines);
        Self { path: file.path.clone(), lines }
    }
}

/// A file is a test by its path; otherwise, its `#[cfg(test)]` modules are.
fn mark_tests(path: &str, lines: &mut [Line]) {
    let by_place = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    let first = if by_place {
        Some(0)
    } else {
        (0..lines.len()).find(|at| {
            lines[*at].code.contains("#[cfg(test)]")
                && lines.get(*at + 1).is_some_and(|next| next.code.contains('{'))
        })
    };
    if let Some(first) = first {
        lines[first..].iter_mut().for_each(|line| line.test = true);
    }
}

fn blank_all_but(kind: Kind, chars: &[char], kinds: &[Kind]) -> String {
    chars.iter().zip(kinds).map(|(c, of)| if *of == kind { *c } else { ' ' }).collect()
}

/// The kind of every character. The newline after a line comment is code.
fn classify(chars: &[char]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::with_capacity(chars.len());
    while let at = kinds.len()
        && at < chars.len()
    {
        let after_word = at > 0 && is_word(chars[at - 1]);
        let (kind, length) = token(&chars[at..], after_word);
        kinds.extend(std::iter::repeat_n(kind, length));
    }
    kinds
}

/// The kind and length of the first token; code is returned one character at a time.
fn token(rest: &[char], after_word: bool) -> (Kind, usize) {
    let prefix = match rest {
        ['b' | 'c', 'r', ..] => 2,
        ['r', ..] => 1,
        _ => 0,
    };
    if prefix > 0
        && !after_word
        && let Some(length) = raw_string(&rest[prefix..])
    {
        return (Kind::Literal, prefix + length);
    }
    match rest {
        ['/', '/', ..] => (Kind::Comment, position(rest, 0, |c| c == '\n')),
        ['/', '*', ..] => (Kind::Comment, block_comment(rest)),
        ['"', ..] => (Kind::Literal, string(rest)),
        // `'a'` and `'\n'`, but not the lifetime `'a`.
        ['\'', '\\', ..] => (Kind::Literal, (position(rest, 3, |c| c == '\'') + 1).min(rest.len())),
        ['\'', _, '\'', ..] => (Kind::Literal, 3),
        _ => (Kind::Code, 1),
    }
}

/// The position of the first matching character at or after `from`, or the end.
fn position(chars: &[char], from: usize, is: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|at| is(chars[*at])).unwrap_or(chars.len())
}

/// The length of `/* … */`, which can be nested.
fn block_comment(rest: &[char]) -> usize {
    let mut at = 0;
    let mut depth = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => {
                at += 2;
                depth += 1;
            }
            ['*', '/', ..] => {
                at += 2;
                depth -= 1;
            }
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

/// The length of `"…"`.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of `"…"` or `#"…"#`, with any number of `#`; `None` for `#name`.
fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = position(rest, 0, |c| c != '#');
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    Some(
        (hashes + 1..rest.len())
            .find(|at| {
                rest[*at] == '"'
                    && rest[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes
            })
            .map_or(rest.len(), |at| at + 1 + hashes),
    )
}

/// Whether a character can be part of an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
