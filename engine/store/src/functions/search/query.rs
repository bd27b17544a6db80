//! The syntax of FTS5's queries: <https://www.sqlite.org/fts5.html#full_text_query_syntax>, without columns.
//!
//! It reads what FTS5 accepts, and does not report errors: FTS5 does.

use std::sync::Arc;

/// The distance of `NEAR` without a number.
const NEAR_DISTANCE: usize = 10;

/// A query whose words are known.
#[derive(Debug)]
pub(super) enum Expression {
    /// Text without words. No document matches.
    Nothing,
    /// All phrases, at most so many words apart.
    Near {
        phrases: Vec<Phrase>,
        distance: usize,
    },
    And(Vec<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>, Box<Expression>),
}

/// Terms that follow each other; at least one.
#[derive(Debug)]
pub(super) struct Phrase {
    pub(super) terms: Vec<Term>,
    /// `^`: it is at the beginning of the text.
    pub(super) is_first: bool,
}

/// A word, or the beginning of words.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) word: Arc<[u8]>,
    pub(super) is_prefix: bool,
}

/// A query whose strings are not yet split into words.
#[derive(Debug)]
pub(super) struct Syntax {
    /// The strings, in order.
    pub(super) strings: Vec<String>,
    root: Node,
}

#[derive(Debug)]
enum Node {
    Near {
        phrases: Vec<Strings>,
        distance: usize,
    },
    /// Phrases side by side. Those without words are ignored.
    Beside(Vec<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>, Box<Node>),
}

/// The strings of a phrase: their indexes, and whether `*` follows.
#[derive(Debug)]
struct Strings {
    strings: Vec<(usize, bool)>,
    is_first: bool,
}

impl Syntax {
    /// Returns the expression, given the words of each string.
    pub(super) fn expression(&self, words: Vec<Vec<Arc<[u8]>>>) -> Expression {
        self.root.expression(&words)
    }
}

impl Node {
    fn expression(&self, words: &[Vec<Arc<[u8]>>]) -> Expression {
        match self {
            Node::Near { phrases, distance } => {
                let phrases = phrases.iter().filter_map(|strings| strings.phrase(words));
                let phrases: Vec<Phrase> = phrases.collect();
                if phrases.is_empty() {
                    Expression::Nothing
                } else {
                    Expression::Near { phrases, distance: *distance }
                }
            }
            Node::Beside(nodes) => {
                let mut all: Vec<Expression> =
                    nodes.iter().map(|node| node.expression(words)).collect();
                all.retain(|expression| !matches!(expression, Expression::Nothing));
                if all.is_empty() { Expression::Nothing } else { Expression::And(all) }
            }
            Node::And(one, other) => {
                Expression::And(vec![one.expression(words), other.expression(words)])
            }
            Node::Or(one, other) => {
                Expression::Or(Box::new(one.expression(words)), Box::new(other.expression(words)))
            }
            Node::Not(one, other) => {
                Expression::Not(Box::new(one.expression(words)), Box::new(other.expression(words)))
            }
        }
    }
}

impl Strings {
    /// `None` if the strings have no words.
    fn phrase(&self, words: &[Vec<Arc<[u8]>>]) -> Option<Phrase> {
        let mut terms: Vec<Term> = Vec::new();
        for (at, is_prefix) in &self.strings {
            let words = words[*at].iter().cloned();
            terms.extend(words.map(|word| Term { word, is_prefix: false }));
            // As in FTS5, `*` after a string without words belongs to the word before it.
            if let Some(last) = terms.last_mut() {
                last.is_prefix = *is_prefix;
            }
        }
        (!terms.is_empty()).then_some(Phrase { terms, is_first: self.is_first })
    }
}

/// Reads a query. `None` if FTS5 rejects it, or if it names a column.
pub(super) fn parse(query: &str) -> Option<Syntax> {
    let query = query.split('\0').next().unwrap_or_default();
    let mut parser = Parser { tokens: tokens(query)?, at: 0, strings: Vec::new(), depth: 0 };
    let root = parser.or()?;
    (parser.at == parser.tokens.len()).then_some(Syntax { strings: parser.strings, root })
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word without quotes.
    Bare(String),
    Quoted(String),
    Symbol(char),
    And,
    Or,
    Not,
}

/// `None` if a character or a string is invalid.
fn tokens(query: &str) -> Option<Vec<Token>> {
    let is_bare =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '\u{1a}') || !c.is_ascii();
    let mut tokens = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        match first {
            ' ' | '\t' | '\n' | '\r' => rest = &rest[1..],
            '"' => {
                let (string, after) = quoted(&rest[1..])?;
                tokens.push(Token::Quoted(string));
                rest = after;
            }
            _ if is_bare(first) => {
                let end = rest.find(|c| !is_bare(c)).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                tokens.push(match word {
                    "AND" => Token::And,
                    "OR" => Token::Or,
                    "NOT" => Token::Not,
                    word => Token::Bare(word.to_owned()),
                });
                rest = after;
            }
            '(' | ')' | ',' | '+' | '*' | '^' => {
                tokens.push(Token::Symbol(first));
                rest = &rest[1..];
            }
            _ => return None,
        }
    }
    Some(tokens)
}

/// The string at the beginning, after its first quote, and the text after it. Two quotes stand for one.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut string = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        string.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                string.push('"');
                rest = after;
            }
            None => return Some((string, after)),
        }
    }
}

/// Levels of parentheses. The parser of FTS5 accepts fewer than 100.
const DEPTH: usize = 256;

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    strings: Vec<String>,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    /// Takes the next token if it is this one.
    fn take(&mut self, token: &Token) -> bool {
        let is_next = self.peek() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn symbol(&mut self, symbol: char) -> bool {
        self.take(&Token::Symbol(symbol))
    }

    fn or(&mut self) -> Option<Node> {
        let mut node = self.and()?;
        while self.take(&Token::Or) {
            node = Node::Or(Box::new(node), Box::new(self.and()?));
        }
        Some(node)
    }

    fn and(&mut self) -> Option<Node> {
        let mut node = self.not()?;
        while self.take(&Token::And) {
            node = Node::And(Box::new(node), Box::new(self.not()?));
        }
        Some(node)
    }

    fn not(&mut self) -> Option<Node> {
        let mut node = self.beside()?;
        while self.take(&Token::Not) {
            node = Node::Not(Box::new(node), Box::new(self.beside()?));
        }
        Some(node)
    }

    /// An expression in parentheses, or phrases side by side.
    fn beside(&mut self) -> Option<Node> {
        if self.symbol('(') {
            self.depth += 1;
            if self.depth > DEPTH {
                return None;
            }
            let node = self.or()?;
            self.depth -= 1;
            return self.symbol(')').then_some(node);
        }
        let mut nodes = vec![self.near()?];
        while matches!(self.peek(), Some(Token::Bare(_) | Token::Quoted(_) | Token::Symbol('^'))) {
            nodes.push(self.near()?);
        }
        Some(Node::Beside(nodes))
    }

    fn near(&mut self) -> Option<Node> {
        let is_near = self.tokens.get(self.at + 1) == Some(&Token::Symbol('('))
            && self.take(&Token::Bare("NEAR".to_owned()));
        if !is_near {
            let is_first = self.symbol('^');
            let phrases = vec![self.phrase(is_first)?];
            return Some(Node::Near { phrases, distance: NEAR_DISTANCE });
        }
        self.symbol('(');
        let mut phrases = Vec::new();
        while !matches!(self.peek(), None | Some(Token::Symbol(',' | ')'))) {
            phrases.push(self.phrase(false)?);
        }
        let distance = if self.symbol(',') { self.distance()? } else { NEAR_DISTANCE };
        self.symbol(')').then_some(Node::Near { phrases, distance })
    }

    fn distance(&mut self) -> Option<usize> {
        let Some(Token::Bare(digits)) = self.peek() else { return None };
        // Larger than any text, as in FTS5.
        let distance = digits.parse().unwrap_or(usize::MAX);
        self.at += 1;
        Some(distance)
    }

    fn phrase(&mut self, is_first: bool) -> Option<Strings> {
        let mut strings = Vec::new();
        loop {
            let string = match self.peek() {
                Some(Token::Bare(string) | Token::Quoted(string)) => string.clone(),
                _ => return None,
            };
            self.at += 1;
            strings.push((self.strings.len(), self.symbol('*')));
            self.strings.push(string);
            if !self.symbol('+') {
                return Some(Strings { strings, is_first });
            }
        }
    }
}
