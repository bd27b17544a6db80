//! The row condition of a policy: SQL over the row's columns and the caller's identity. This module
//! checks the text and renders it with numbered parameters to evaluate it for one row.
//! [`crate::AuthorizedViews`] plans the rows that it makes visible.

use abide_schema::{Code, Refusal};
use sqlite3_parser::dialect::TokenType::{TK_LP, TK_RP, TK_SELECT, TK_SEMI, TK_VARIABLE};
use sqlite3_parser::lexer::Scanner;
use sqlite3_parser::lexer::sql::{Error, Parser, Tokenizer};
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::plan::lex;

/// The caller parameters that a row condition may name, without the sigil. `scope_` is the prefix
/// of a scope key.
const CALLER: [&str; 4] = ["caller_id", "caller_role", "caller_scope", "caller_capabilities"];

/// The prefix of a caller parameter for its value before the caller narrowed its scope.
pub const OWN: &str = "own_";

/// `true` if the SELECT that replaces a table may name this parameter.
pub(crate) fn is_of_caller(name: &str) -> bool {
    may_be_named(name.strip_prefix(OWN).unwrap_or(name))
}

/// `true` if a row condition may name this parameter.
fn may_be_named(name: &str) -> bool {
    CALLER.contains(&name) || name.strip_prefix("scope_").is_some_and(|key| !key.is_empty())
}

/// Checks that a text, put in parentheses, is one expression that cannot close them.
///
/// # Errors
/// `bad_sql`.
pub fn check_condition(text: &str) -> Result<(), Refusal> {
    lex::check_no_nul(text)?;
    let mut depth = 0_i64;
    let mut any = false;
    let mut scanner = Scanner::new(Tokenizer::new());
    while let (start, Some((_, token)), end) =
        scanner.scan(text.as_bytes()).map_err(|error| lex::refusal(text, &error))?
    {
        any = true;
        match token {
            TK_LP => depth += 1,
            TK_RP => depth -= 1,
            TK_SEMI => return Err(no_condition("the condition contains a semicolon")),
            TK_VARIABLE => {
                let written = text.get(start..end).unwrap_or_default();
                let name = lex::parameter_name(written);
                if !written.starts_with(':') || !may_be_named(name) {
                    let detail = format!("a condition has no parameter {written}");
                    return Err(Refusal::new(Code::BadSql, detail).hint(
                        "use :caller_id, :caller_role, :caller_scope, :caller_capabilities \
                         or :scope_<key>",
                    ));
                }
            }
            _ => {}
        }
        if depth < 0 {
            return Err(no_condition("the condition has an unmatched closing parenthesis"));
        }
    }
    if depth > 0 || !any {
        return Err(no_condition("the condition is incomplete"));
    }
    Ok(())
}

/// The beginning of a statement whose condition begins on the second line.
const WHERE: &str = "SELECT 1 WHERE (\n";

/// Checks the syntax of a text that [`check_condition`] accepts. An error names what the text contains, and its place there.
///
/// # Errors
/// `bad_sql`.
pub fn check_condition_syntax(text: &str) -> Result<(), Refusal> {
    if syntax_error(&format!("{WHERE}{text}\n)")).is_none() {
        return Ok(());
    }
    // Without the closing parenthesis, which the text does not contain, an error before the end is one of the text.
    match syntax_error(&format!("{WHERE}{text}")) {
        Some(Error::ParserError(error, Some(place))) if !lex::is_at_end(&error) => {
            let line = place.line.saturating_sub(1);
            let column = place.column;
            let refusal = lex::refusal(text, &Error::ParserError(error, None));
            Err(refusal.hint(format!("at line {line}, column {column} of the condition")))
        }
        _ => Err(no_condition("the condition is incomplete")),
    }
}

/// Returns the first syntax error of a statement.
fn syntax_error(sql: &str) -> Option<Error> {
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, sql.as_bytes());
    parser.next().err()
}

/// Returns the refusal of a text that is not one condition.
fn no_condition(what: &str) -> Refusal {
    Refusal::new(Code::BadSql, what).hint("write one SQL condition")
}

/// A condition as pieces of text, separated by its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// A piece of the text, and the index in `parameters` of the parameter after it.
    pieces: Vec<(String, Option<usize>)>,
    parameters: Vec<String>,
    reads_tables: bool,
}

impl Condition {
    /// Parses a text that [`check_condition`] accepts.
    ///
    /// # Errors
    /// `bad_sql`.
    pub fn parse(text: &str) -> Result<Condition, Refusal> {
        check_condition(text)?;
        let mut pieces = Vec::new();
        let mut parameters = Vec::new();
        let mut copied = 0;
        let mut reads_tables = false;
        let piece = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
        let mut scanner = Scanner::new(Tokenizer::new());
        while let (start, Some((_, token)), end) =
            scanner.scan(text.as_bytes()).map_err(|error| lex::refusal(text, &error))?
        {
            reads_tables |= token == TK_SELECT;
            if token != TK_VARIABLE {
                continue;
            }
            let name = lex::parameter_name(text.get(start..end).unwrap_or_default());
            let known = parameters.iter().position(|known: &String| known == name);
            let at = known.unwrap_or_else(|| {
                parameters.push(name.to_owned());
                parameters.len() - 1
            });
            pieces.push((piece(copied, start), Some(at)));
            copied = end;
        }
        pieces.push((piece(copied, text.len()), None));
        Ok(Condition { pieces, parameters, reads_tables })
    }

    /// Returns the same condition over the scope that the caller had before narrowing; see [`OWN`].
    #[must_use]
    pub fn sql_in_own_scope(&self) -> String {
        let mut sql = String::new();
        for (piece, parameter) in &self.pieces {
            sql.push_str(piece);
            if let Some(at) = parameter {
                sql.push_str(&format!(":{OWN}{}", self.parameters[*at]));
            }
        }
        sql
    }

    /// Returns the parameters, without the sigil, in the order of their numbers.
    #[must_use]
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// `true` if the condition reads tables, not only the row.
    #[must_use]
    pub fn reads_tables(&self) -> bool {
        self.reads_tables
    }

    /// Returns the text in parentheses, its parameters numbered from `first`.
    #[must_use]
    pub fn sql(&self, first: usize) -> String {
        let mut sql = String::from("(");
        for (text, parameter) in &self.pieces {
            sql.push_str(text);
            if let Some(at) = parameter {
                sql.push_str(&format!("?{}", first + at));
            }
        }
        // The newline ends a trailing `--` comment.
        sql.push_str("\n)");
        sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_replaced_by_numbers() {
        let text = "owner = :caller_id OR ':scope_x' = a /* :no */ AND t = :scope_x -- :caller_id";
        let condition = Condition::parse(text).expect("the condition is valid");
        assert_eq!(condition.parameters(), ["caller_id", "scope_x"]);
        let sql = "(owner = ?4 OR ':scope_x' = a /* :no */ AND t = ?5 -- :caller_id\n)";
        assert_eq!(condition.sql(4), sql);
        assert!(!condition.reads_tables());
        let member = Condition::parse("a IN (select b FROM c WHERE d = :caller_id AND :caller_id)")
            .expect("the condition is valid");
        assert_eq!(member.sql(1), "(a IN (select b FROM c WHERE d = ?1 AND ?1)\n)");
        assert!(member.reads_tables());
        assert!(Condition::parse("a = :whom").is_err() && Condition::parse("a) OR (b").is_err());
        assert!(Condition::parse("a = 'x\0y'").is_err());
    }

    /// The error of an incomplete condition was the parenthesis that is put after it.
    #[test]
    fn a_syntax_error_is_one_of_the_text() {
        let incomplete = ("the condition is incomplete", "write one SQL condition");
        for (text, (detail, hint)) in [
            ("tenant =", incomplete),
            ("tenant = -- 'a'", incomplete),
            ("SELECT", incomplete),
            ("a = = 1", ("near \"=\": syntax error", "at line 1, column 5 of the condition")),
            ("a\n IN (1,)", ("near \")\": syntax error", "at line 2, column 8 of the condition")),
            ("1 LIMIT 1", ("near \"LIMIT\": syntax error", "at line 1, column 3 of the condition")),
        ] {
            let refusal = check_condition_syntax(text).expect_err(text);
            assert_eq!((&*refusal.detail, refusal.hint.as_deref()), (detail, Some(hint)), "{text}");
        }
        for text in ["a = 1 -- all", "SELECT 1", "a IN (SELECT b FROM c ORDER BY d)"] {
            assert_eq!(check_condition_syntax(text), Ok(()), "{text}");
        }
    }
}
