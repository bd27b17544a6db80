//! A condition on rows as a policy has it: SQL over the row's columns and what is known of the caller.
//! What it lets be seen is planned elsewhere ([`crate::Outlook`]); here is its text, checked, and the
//! same text with numbers for its parameters, for who evaluates it of one row.

use abide_schema::{Code, Refusal};
use sqlite3_parser::dialect::TokenType::{TK_LP, TK_RP, TK_SELECT, TK_SEMI, TK_VARIABLE};
use sqlite3_parser::lexer::Scanner;
use sqlite3_parser::lexer::sql::Tokenizer;

use crate::lex;

/// The names that a condition on rows may give to what is known of the caller, without the sigil.
/// `scope_` stands before a key of its scope.
const CALLER: [&str; 4] = ["caller_id", "caller_role", "caller_scope", "caller_capabilities"];

/// Stands before the name of what is known of a caller, for the caller as it was before it narrowed its scope.
pub const OWN: &str = "own_";

/// Whether the SQL that stands for a table may name a parameter.
pub(crate) fn is_of_caller(name: &str) -> bool {
    may_be_named(name.strip_prefix(OWN).unwrap_or(name))
}

/// Whether a condition on rows may name a parameter.
fn may_be_named(name: &str) -> bool {
    CALLER.contains(&name) || name.strip_prefix("scope_").is_some_and(|key| !key.is_empty())
}

/// Sees to it that a text, put between parentheses, is one expression there and cannot end them.
///
/// # Errors
/// `bad_sql`.
pub fn check_condition(text: &str) -> Result<(), Refusal> {
    lex::check_no_nul(text)?;
    let bad = |what: &str| Err(Refusal::new(Code::BadSql, what).hint("write one SQL condition"));
    let (mut depth, mut any) = (0_i64, false);
    let mut scanner = Scanner::new(Tokenizer::new());
    while let (start, Some((_, token)), end) =
        scanner.scan(text.as_bytes()).map_err(|error| lex::refusal(text, &error))?
    {
        any = true;
        match token {
            TK_LP => depth += 1,
            TK_RP => depth -= 1,
            TK_SEMI => return bad("the condition holds a semicolon"),
            TK_VARIABLE => {
                let written = text.get(start..end).unwrap_or_default();
                let name = lex::parameter_name(written);
                if !written.starts_with(':') || !may_be_named(name) {
                    let detail = format!("a condition knows no parameter {written}");
                    return Err(Refusal::new(Code::BadSql, detail).hint(
                        "there are :caller_id, :caller_role, :caller_scope, :caller_capabilities \
                         and :scope_<key>",
                    ));
                }
            }
            _ => {}
        }
        if depth < 0 {
            return bad("the condition closes a parenthesis that it did not open");
        }
    }
    if depth > 0 || !any {
        return bad("the condition is incomplete");
    }
    Ok(())
}

/// A condition in pieces, between which its parameters stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// A piece of the text, and the place in `parameters` of what follows it.
    pieces: Vec<(String, Option<usize>)>,
    parameters: Vec<String>,
    asks_tables: bool,
}

impl Condition {
    /// Of a text that [`check_condition`] takes.
    ///
    /// # Errors
    /// `bad_sql`.
    pub fn parse(text: &str) -> Result<Condition, Refusal> {
        check_condition(text)?;
        let (mut pieces, mut parameters, mut copied) = (Vec::new(), Vec::new(), 0);
        let mut asks_tables = false;
        let piece = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
        let mut scanner = Scanner::new(Tokenizer::new());
        while let (start, Some((_, token)), end) =
            scanner.scan(text.as_bytes()).map_err(|error| lex::refusal(text, &error))?
        {
            asks_tables |= token == TK_SELECT;
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
        Ok(Condition { pieces, parameters, asks_tables })
    }

    /// The same over a caller as it was before it narrowed its scope; see [`OWN`].
    #[must_use]
    pub fn of_own_scope(&self) -> String {
        let mut sql = String::new();
        for (piece, parameter) in &self.pieces {
            sql.push_str(piece);
            if let Some(at) = parameter {
                sql.push_str(&format!(":{OWN}{}", self.parameters[*at]));
            }
        }
        sql
    }

    /// Its parameters, without the sigil, in the order of their numbers.
    #[must_use]
    pub fn parameters(&self) -> &[String] {
        &self.parameters
    }

    /// Whether it looks into tables, and not at the row alone.
    #[must_use]
    pub fn asks_tables(&self) -> bool {
        self.asks_tables
    }

    /// The text between parentheses, its parameters numbered from `first` on.
    #[must_use]
    pub fn sql(&self, first: usize) -> String {
        let mut sql = String::from("(");
        for (text, parameter) in &self.pieces {
            sql.push_str(text);
            if let Some(at) = parameter {
                sql.push_str(&format!("?{}", first + at));
            }
        }
        // A comment at its end ends there.
        sql.push_str("\n)");
        sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_told_by_numbers() {
        let text = "owner = :caller_id OR ':scope_x' = a /* :no */ AND t = :scope_x -- :caller_id";
        let condition = Condition::parse(text).expect("it is one");
        assert_eq!(condition.parameters(), ["caller_id", "scope_x"]);
        let sql = "(owner = ?4 OR ':scope_x' = a /* :no */ AND t = ?5 -- :caller_id\n)";
        assert_eq!(condition.sql(4), sql);
        assert!(!condition.asks_tables());
        let member = Condition::parse("a IN (select b FROM c WHERE d = :caller_id AND :caller_id)");
        let member = member.expect("it is one");
        assert_eq!(member.sql(1), "(a IN (select b FROM c WHERE d = ?1 AND ?1)\n)");
        assert!(member.asks_tables());
        assert!(Condition::parse("a = :whom").is_err() && Condition::parse("a) OR (b").is_err());
        assert!(Condition::parse("a = 'x\0y'").is_err());
    }
}
