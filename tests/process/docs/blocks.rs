//! The fenced blocks of a page, and the comparison of what commands print with what the page says.
//!
//! `tests/process/docs.rs` lists the kinds of blocks. `cargo xtask operation` compiles this file, too, so it uses nothing
//! else of the tests.

/// What the words after the fence say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Runs,
    Fails,
    Background,
    NotRun,
    Output,
    Other,
    /// No block: a command in a comment, which runs before the next block, and which a reader does not see.
    Before,
}

/// A block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// Returns the blocks of a page in their order.
///
/// # Errors
/// A block of a shell has an unknown kind, or a block is not closed.
pub(crate) fn read(name: &str, page: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (at, text) in page.lines().enumerate() {
        let line = at + 1;
        if let Some(info) = text.strip_prefix("```") {
            is_open = !is_open;
            if is_open {
                let kind = parse_kind(info).map_err(|why| format!("{name}:{line}: {why}"))?;
                blocks.push(Block { line, kind, text: String::new() });
            }
        } else if is_open {
            if let Some(block) = blocks.last_mut() {
                block.text += text;
                block.text += "\n";
            }
        } else if let Some(command) = command_of(text) {
            blocks.push(Block { line, kind: Kind::Before, text: format!("{command}\n") });
        }
    }
    if is_open {
        let line = blocks.last().map_or(0, |block| block.line);
        return Err(format!("{name}:{line}: the block is not closed"));
    }
    Ok(blocks)
}

fn parse_kind(info: &str) -> Result<Kind, String> {
    match info {
        "sh" => Ok(Kind::Runs),
        "sh fails" => Ok(Kind::Fails),
        "sh background" => Ok(Kind::Background),
        "sh no-run" => Ok(Kind::NotRun),
        "text" => Ok(Kind::Output),
        shell if ["sh", "bash", "shell", "console"].contains(&first_word(shell)) => {
            Err("a block is ```sh, ```sh fails, ```sh background or ```sh no-run".to_owned())
        }
        _ => Ok(Kind::Other),
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// Returns the command of a comment.
fn command_of(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- before: ")?.strip_suffix(" -->")
}

/// Returns the difference between what was printed and what a block says, if there is one.
pub(crate) fn find_difference(printed: &str, expected: &str) -> Option<String> {
    let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let expected_lines: Vec<&str> = expected.lines().collect();
    let is_same = lines.len() == expected_lines.len()
        && lines.iter().zip(&expected_lines).all(|(line, expected)| fits(line, expected));
    (!is_same)
        .then(|| format!("the page says\n{expected}\nand this is printed:\n{}", lines.join("\n")))
}

/// Whether a line matches the page; `…` matches any text.
fn fits(line: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let found = if parts.peek().is_none() { rest.rfind(part) } else { rest.find(part) };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}
