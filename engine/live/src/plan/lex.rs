//! Checks on the token stream, independent of the syntax tree: nesting within limits, a single
//! statement, and the text of each result column, by which SQLite names columns.

use std::collections::HashSet;

use abide_schema::{Code, Refusal, limits};
use sqlite3_parser::dialect::TokenType::{
    self, TK_AS, TK_CASE, TK_COMMA, TK_DISTINCT, TK_END, TK_EXCEPT, TK_FROM, TK_GROUP, TK_HAVING,
    TK_INTERSECT, TK_LIMIT, TK_LP, TK_ORDER, TK_RP, TK_SELECT, TK_SEMI, TK_UNION, TK_WHERE,
};
use sqlite3_parser::lexer::Scanner;
use sqlite3_parser::lexer::sql::{Error, ParserError, Tokenizer};

use crate::identifier::unquote;

/// The maximum nesting of parentheses and CASE. Every level takes stack here and in SQLite.
pub(crate) const NESTING: usize = 100;

/// The maximum height of an expression tree, in tokens. The parser's printer walks a tree by
/// recursion, and `1+1+…` and `~~~…1` build trees as high as they are long. SQLite itself refuses
/// heights over 1,000 expressions, most of which take two or three tokens.
const HEIGHT: usize = 4_000;

/// The highest parameter number, as in SQLite.
const PARAMETERS: u32 = 32_766;

/// Checks that a text contains no NUL character. SQLite would end the text there and ignore the
/// rest.
///
/// # Errors
/// `bad_sql`.
pub fn check_no_nul(text: &str) -> Result<(), Refusal> {
    if !text.contains('\0') {
        return Ok(());
    }
    Err(Refusal::new(Code::BadSql, "the statement contains a NUL character")
        .hint("pass a string with a NUL character as a parameter"))
}

/// Returns the text of each item between SELECT and FROM, of the first outermost SELECT.
pub(crate) fn columns_as_written(text: &str) -> Result<Vec<String>, Refusal> {
    if text.len() > limits::SQL_BYTES {
        let detail = format!("the statement is longer than {} bytes", limits::SQL_BYTES);
        return Err(Refusal::new(Code::LimitExceeded, detail)
            .hint("pass long strings and lists as parameters"));
    }
    check_no_nul(text)?;
    let mut columns = Columns { text, items: Vec::new(), open: None, state: State::Before };
    let mut scanner = Scanner::new(Tokenizer::new());
    let mut depth = 0usize;
    let mut cases = 0usize;
    let mut ended = false;
    let mut last = None;
    let mut height = ExprDepth::default();
    while let (start, Some((_, token)), _) =
        scanner.scan(text.as_bytes()).map_err(|error| refusal(text, &error))?
    {
        match token {
            TK_SEMI => {
                ended = true;
                continue;
            }
            _ if ended => {
                return Err(Refusal::new(
                    Code::BadSql,
                    "the text contains more than one statement",
                )
                .hint("send one SELECT at a time"));
            }
            TK_LP => depth += 1,
            TK_RP => depth = depth.saturating_sub(1),
            TK_CASE => cases += 1,
            TK_END => cases = cases.saturating_sub(1),
            _ => {}
        }
        if depth + cases > NESTING {
            return Err(too_deep());
        }
        if height.count(token) > HEIGHT {
            let detail = format!("an expression has more than {HEIGHT} operators in a row");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("pass lists as JSON, with json_each()"));
        }
        let outside = depth == 0 || (depth == 1 && token == TK_LP);
        columns.read_token(token, outside, last, start);
        last = Some(token);
    }
    columns.close(text.len());
    Ok(columns.items)
}

/// A parameter of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// SQLite's number of the parameter.
    pub(crate) number: u32,
    /// The name without its sigil; the number if it has no name.
    pub(crate) name: String,
}

/// A text with a number at every `?`, and its parameters in the order of first use.
#[derive(Debug)]
pub(crate) struct NumberedText {
    pub(crate) text: String,
    pub(crate) parameters: Vec<Parameter>,
}

/// Returns the text with a number at every `?`, and its parameters in the order of first use.
/// Numbering follows SQLite: `?` takes the next number, `?7` its own, a name the next one at its
/// first use. This works on tokens because the tree is not visited in text order.
pub(crate) fn number_parameters(text: &str) -> Result<NumberedText, Refusal> {
    let mut numbered = String::with_capacity(text.len());
    let mut copied = 0;
    let mut parameters = Vec::new();
    let mut known = HashSet::new();
    let mut last = 0;
    let mut scanner = Scanner::new(Tokenizer::new());
    while let (start, Some((token, kind)), end) =
        scanner.scan(text.as_bytes()).map_err(|error| refusal(text, &error))?
    {
        if kind != TokenType::TK_VARIABLE {
            continue;
        }
        let written = std::str::from_utf8(token).unwrap_or_default();
        let next = last + 1;
        let name = match parameter_name(written) {
            _ if written.starts_with('#') => {
                let detail = format!("near \"{written}\": syntax error");
                return Err(Refusal::new(Code::BadSql, detail));
            }
            "" => {
                numbered.push_str(text.get(copied..start).unwrap_or_default());
                numbered.push_str(&format!("?{next}"));
                copied = end;
                next.to_string()
            }
            name => name.to_owned(),
        };
        if !known.insert(name.clone()) {
            continue;
        }
        let is_numbered = written.bytes().all(|b| b.is_ascii_digit());
        let number = if is_numbered { name.parse().ok() } else { Some(next) };
        let Some(number) = number.filter(|number| (1..=PARAMETERS).contains(number)) else {
            let detail = format!("variable number must be between ?1 and ?{PARAMETERS}");
            return Err(Refusal::new(Code::BadSql, detail));
        };
        last = last.max(number);
        parameters.push(Parameter { number, name });
    }
    numbered.push_str(text.get(copied..).unwrap_or_default());
    Ok(NumberedText { text: numbered, parameters })
}

/// `true` if a text names something of the schema `main`, quoted or not. A table alias `main`
/// counts too.
#[must_use]
pub fn names_main(text: &str) -> bool {
    let mut scanner = Scanner::new(Tokenizer::new());
    let mut after_main = false;
    while let Ok((_, Some((token, kind)), _)) = scanner.scan(text.as_bytes()) {
        if after_main && kind == TokenType::TK_DOT {
            return true;
        }
        let name = std::str::from_utf8(token).map(unquote);
        after_main = name.is_ok_and(|name| name.eq_ignore_ascii_case("main"));
    }
    false
}

/// Returns a lower bound on the number of operators, functions and arguments of a text. Each of
/// them may process a value for each row.
#[must_use]
pub fn operations(text: &str) -> usize {
    use TokenType::{TK_AND, TK_ASC, TK_BY, TK_DESC, TK_DOT, TK_ID, TK_INTEGER, TK_JOIN, TK_ON};
    use TokenType::{TK_STRING, TK_VALUES, TK_VARIABLE, TK_WITH};
    let mut scanner = Scanner::new(Tokenizer::new());
    let mut operations = 0;
    let mut depth = 0_usize;
    while let Ok((_, Some((_, token)), _)) = scanner.scan(text.as_bytes()) {
        match token {
            TK_LP => depth += 1,
            TK_RP => depth = depth.saturating_sub(1),
            _ => {}
        }
        operations += match token {
            TK_ID | TK_STRING | TK_INTEGER | TK_VARIABLE | TK_DOT | TK_AS | TK_SELECT | TK_FROM
            | TK_WHERE | TK_AND | TK_ORDER | TK_BY | TK_ASC | TK_DESC | TK_LIMIT | TK_JOIN
            | TK_ON | TK_GROUP | TK_RP | TK_VALUES | TK_WITH => 0,
            // These commas separate columns, not arguments.
            TK_COMMA if depth == 0 => 0,
            _ => 1,
        };
    }
    operations
}

/// Returns a parameter's name: `sid` of `:sid`, `1` of `?1`.
pub(crate) fn parameter_name(written: &str) -> &str {
    written.strip_prefix([':', '@', '$']).unwrap_or(written)
}

/// Returns the refusal of a text that nests too deeply.
pub(crate) fn too_deep() -> Refusal {
    Refusal::new(
        Code::LimitExceeded,
        format!("the statement nests more than {NESTING} levels deep"),
    )
}

/// `true` if a parser error is that of a text which ends too early.
pub(crate) fn is_at_end(error: &ParserError) -> bool {
    match error {
        ParserError::UnexpectedEof => true,
        ParserError::SyntaxError(token) => token.is_empty(),
        ParserError::Custom(_) => false,
    }
}

/// Returns a parser error in SQLite's wording.
pub(crate) fn refusal(text: &str, error: &Error) -> Refusal {
    let detail = match error {
        Error::ParserError(error, _) if is_at_end(error) => "incomplete input".to_owned(),
        Error::ParserError(error, _) => error.to_string(),
        Error::UnterminatedLiteral(_) => "unterminated string literal".to_owned(),
        Error::UnterminatedBracket(_) => "unterminated [bracketed] name".to_owned(),
        Error::UnterminatedBlockComment(_) => "unterminated block comment".to_owned(),
        other => {
            let message = other.to_string();
            message.split(" at ").next().unwrap_or(&message).to_owned()
        }
    };
    let refusal = Refusal::new(Code::BadSql, detail);
    if text.trim().is_empty() { refusal.hint("send one SELECT") } else { refusal }
}

/// An upper bound on the height of the expression tree, from its tokens.
#[derive(Default)]
struct ExprDepth {
    /// One level for each enclosing parenthesis and CASE.
    around: Vec<Level>,
    level: Level,
}

/// The state inside one pair of parentheses.
#[derive(Clone, Copy, Default)]
struct Level {
    /// Tokens of the current expression.
    tokens: usize,
    /// The maximum height of the nested parentheses.
    within: usize,
    /// The maximum height of the preceding expressions.
    before: usize,
}

impl Level {
    fn height(self) -> usize {
        self.before.max(self.tokens + self.within)
    }
}

impl ExprDepth {
    /// Counts one more token; returns the height of the current expression.
    fn count(&mut self, token: TokenType) -> usize {
        use TokenType::{TK_ELSE, TK_JOIN, TK_ON, TK_THEN, TK_VALUES, TK_WHEN};
        match token {
            TK_LP | TK_CASE => self.around.push(std::mem::take(&mut self.level)),
            TK_RP | TK_END => {
                let height = self.level.height() + 1;
                self.level = self.around.pop().unwrap_or_default();
                self.level.within = self.level.within.max(height);
            }
            TK_COMMA | TK_SELECT | TK_FROM | TK_WHERE | TK_GROUP | TK_HAVING | TK_ORDER
            | TK_LIMIT | TK_UNION | TK_EXCEPT | TK_INTERSECT | TK_ON | TK_JOIN | TK_VALUES
            | TK_WHEN | TK_THEN | TK_ELSE => {
                self.level = Level { before: self.level.height(), ..Level::default() };
            }
            TokenType::TK_ID
            | TokenType::TK_STRING
            | TokenType::TK_INTEGER
            | TokenType::TK_FLOAT
            | TokenType::TK_BLOB
            | TokenType::TK_VARIABLE
            | TokenType::TK_DOT => {}
            _ => self.level.tokens += 1,
        }
        self.level.height()
    }
}

#[derive(PartialEq, Eq)]
enum State {
    Before,
    Within,
    After,
}

/// Collects the items of the first SELECT outside parentheses.
struct Columns<'a> {
    text: &'a str,
    items: Vec<String>,
    open: Option<usize>,
    state: State,
}

impl Columns<'_> {
    fn read_token(
        &mut self,
        token: TokenType,
        outside: bool,
        last: Option<TokenType>,
        start: usize,
    ) {
        let ends = matches!(
            token,
            TK_WHERE | TK_GROUP | TK_HAVING | TK_ORDER | TK_LIMIT | TK_UNION | TK_EXCEPT
        ) || token == TK_INTERSECT
            || (token == TK_FROM && last != Some(TK_DISTINCT));
        match self.state {
            State::Before if outside && token == TK_SELECT => self.state = State::Within,
            State::Within if outside && token == TK_COMMA => self.close_item(start),
            State::Within if outside && ends && last != Some(TK_AS) => self.close(start),
            State::Within
                if self.items.is_empty() && self.open.is_none() && is_quantifier(token) => {}
            State::Within => self.open = self.open.or(Some(start)),
            State::Before | State::After => {}
        }
    }

    /// An item extends to the next token, comments included, as in SQLite.
    fn close_item(&mut self, end: usize) {
        let start = self.open.take().unwrap_or(end);
        self.items.push(self.text.get(start..end).unwrap_or_default().trim().to_owned());
    }

    fn close(&mut self, end: usize) {
        if self.state == State::Within {
            self.close_item(end);
        }
        self.state = State::After;
    }
}

fn is_quantifier(token: TokenType) -> bool {
    matches!(token, TK_DISTINCT | TokenType::TK_ALL)
}
