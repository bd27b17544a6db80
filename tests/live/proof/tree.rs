//! SQL as a tree that can shrink: lists lose items, expressions are replaced by their parts, words
//! by simpler words, and joins are removed with everything that names them.
//!
//! It does not interpret the SQL. If a step results in invalid SQL, the run is refused and the step
//! is discarded.

/// A piece of SQL.
#[derive(Clone, Debug)]
pub(crate) enum Sql {
    /// Literal text.
    Text(String),
    /// A parameter, by its name without the sigil.
    Param(String),
    /// A word, and a simpler replacement.
    Word(&'static str, &'static str),
    /// A sequence.
    Seq(Vec<Sql>),
    /// A value: any value inside may replace it.
    Expr(Vec<Sql>),
    /// Items, some of which may be removed.
    List(List),
    /// FROM.
    From(Vec<Term>),
}

/// Items with a text before, between and after them; empty if there is no item.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) open: &'static str,
    pub(crate) between: &'static str,
    pub(crate) close: &'static str,
    /// The minimum number of items.
    pub(crate) least: usize,
    pub(crate) items: Vec<Sql>,
}

/// One table of a FROM.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    /// How it is joined to the preceding ones.
    pub(crate) join: Sql,
    /// The item with its alias.
    pub(crate) item: Sql,
    /// The name that qualifies its columns.
    pub(crate) alias: String,
    /// ON or USING.
    pub(crate) on: Sql,
}

impl From<&str> for Sql {
    fn from(text: &str) -> Sql {
        Sql::Text(text.to_owned())
    }
}

impl From<String> for Sql {
    fn from(text: String) -> Sql {
        Sql::Text(text)
    }
}

impl From<List> for Sql {
    fn from(list: List) -> Sql {
        Sql::List(list)
    }
}

/// A sequence of pieces.
macro_rules! seq {
    ($($part:expr),* $(,)?) => { $crate::proof::tree::Sql::Seq(vec![$($part.into()),*]) };
}

/// A value of pieces.
macro_rules! value {
    ($($part:expr),* $(,)?) => { $crate::proof::tree::Sql::Expr(vec![$($part.into()),*]) };
}

pub(crate) use {seq, value};

/// Items between commas, at least one.
pub(crate) fn commas(items: Vec<Sql>) -> Sql {
    List { open: "", between: ", ", close: "", least: 1, items }.into()
}

/// A clause that is removed with its last item.
pub(crate) fn clause(open: &'static str, between: &'static str, items: Vec<Sql>) -> Sql {
    List { open, between, close: "", least: 0, items }.into()
}

/// An optional piece.
pub(crate) fn maybe(what: Option<Sql>) -> Sql {
    clause("", "", what.into_iter().collect())
}

impl Sql {
    /// The text, with parameters by name.
    pub(crate) fn text(&self) -> String {
        self.text_with(&mut |name| format!(":{name}"))
    }

    /// The text, with each parameter replaced.
    pub(crate) fn text_with(&self, param: &mut dyn FnMut(&str) -> String) -> String {
        let mut out = String::new();
        self.write(&mut out, param);
        out
    }

    fn write(&self, out: &mut String, param: &mut dyn FnMut(&str) -> String) {
        match self {
            Sql::Text(text) => out.push_str(text),
            Sql::Word(word, _) => out.push_str(word),
            Sql::Param(name) => out.push_str(&param(name)),
            Sql::Seq(parts) | Sql::Expr(parts) => {
                parts.iter().for_each(|part| part.write(out, param));
            }
            Sql::List(list) if list.items.is_empty() => {}
            Sql::List(list) => {
                out.push_str(list.open);
                for (at, item) in list.items.iter().enumerate() {
                    out.push_str(if at > 0 { list.between } else { "" });
                    item.write(out, param);
                }
                out.push_str(list.close);
            }
            Sql::From(terms) => {
                for (at, term) in terms.iter().enumerate() {
                    if at == 0 {
                        out.push_str(" FROM ");
                        term.item.write(out, param);
                        continue;
                    }
                    for part in [&term.join, &term.item, &term.on] {
                        part.write(out, param);
                    }
                }
            }
        }
    }

    /// Every tree that is one step smaller, the largest steps first.
    pub(crate) fn reductions(&self) -> Vec<Sql> {
        let mut aliases = Vec::new();
        self.aliases(&mut aliases);
        let mut smaller: Vec<Sql> =
            aliases.iter().rev().filter_map(|alias| self.without(alias)).collect();
        smaller.extend(self.steps());
        smaller
    }

    fn aliases(&self, found: &mut Vec<String>) {
        match self {
            Sql::Text(_) | Sql::Param(_) | Sql::Word(..) => {}
            Sql::Seq(parts) | Sql::Expr(parts) => {
                parts.iter().for_each(|part| part.aliases(found));
            }
            Sql::List(list) => list.items.iter().for_each(|item| item.aliases(found)),
            Sql::From(terms) => {
                for term in terms {
                    found.push(term.alias.clone());
                    term.item.aliases(found);
                    term.on.aliases(found);
                }
            }
        }
    }

    /// Without a table and every item that names it; `None` if a FROM would be empty.
    fn without(&self, alias: &str) -> Option<Sql> {
        let parts = |parts: &[Sql]| -> Option<Vec<Sql>> {
            parts.iter().map(|part| part.without(alias)).collect()
        };
        Some(match self {
            Sql::Text(_) | Sql::Param(_) | Sql::Word(..) => self.clone(),
            Sql::Seq(inner) => Sql::Seq(parts(inner)?),
            Sql::Expr(inner) => Sql::Expr(parts(inner)?),
            Sql::List(list) => {
                let mut left = Vec::new();
                for item in &list.items {
                    let inner = item.without(alias)?;
                    if !inner.names(alias) {
                        left.push(inner);
                    }
                }
                while left.len() < list.least {
                    left.push("1".into());
                }
                Sql::List(List { items: left, ..list.clone() })
            }
            Sql::From(terms) => {
                let mut left = Vec::new();
                for term in terms.iter().filter(|term| term.alias != alias) {
                    let item = term.item.without(alias)?;
                    let on = term.on.without(alias)?;
                    left.push(Term { item, on, ..term.clone() });
                }
                if left.is_empty() {
                    return None;
                }
                Sql::From(left)
            }
        })
    }

    fn names(&self, alias: &str) -> bool {
        let text = self.text();
        let qualifier = format!("{alias}.");
        text.match_indices(&qualifier)
            .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    }

    fn steps(&self) -> Vec<Sql> {
        match self {
            Sql::Text(_) | Sql::Param(_) => Vec::new(),
            Sql::Word(word, simpler) if word == simpler => Vec::new(),
            Sql::Word(_, simpler) => vec![Sql::Word(simpler, simpler)],
            Sql::Seq(parts) => within(parts, Sql::Seq),
            Sql::Expr(parts) => {
                let mut smaller: Vec<Sql> = vec!["1".into()];
                parts.iter().for_each(|part| part.values(&mut smaller));
                smaller.extend(within(parts, Sql::Expr));
                smaller
            }
            Sql::List(list) => list.steps(),
            Sql::From(terms) => {
                let mut smaller = Vec::new();
                for (at, term) in terms.iter().enumerate() {
                    let parts = [term.join.clone(), term.item.clone(), term.on.clone()];
                    smaller.extend(within(&parts, |mut parts| {
                        let on = parts.remove(2);
                        let item = parts.remove(1);
                        let mut terms = terms.clone();
                        terms[at] = Term { join: parts.remove(0), item, on, ..terms[at].clone() };
                        Sql::From(terms)
                    }));
                }
                smaller
            }
        }
    }

    /// The outermost values inside.
    fn values(&self, found: &mut Vec<Sql>) {
        match self {
            Sql::Expr(_) | Sql::Param(_) => found.push(self.clone()),
            Sql::Text(_) | Sql::Word(..) | Sql::From(_) => {}
            Sql::Seq(parts) => parts.iter().for_each(|part| part.values(found)),
            Sql::List(list) => list.items.iter().for_each(|item| item.values(found)),
        }
    }
}

impl List {
    /// Without all removable items, without either half, without each one; then with smaller items.
    fn steps(&self) -> Vec<Sql> {
        let count = self.items.len();
        let mut smaller = Vec::new();
        let mut keep = |items: Vec<Sql>| {
            if items.len() >= self.least {
                smaller.push(Sql::List(List { items, ..self.clone() }));
            }
        };
        if count > self.least {
            keep(self.items[..self.least].to_vec());
            if count > 3 {
                keep(self.items[..count / 2].to_vec());
                keep(self.items[count / 2..].to_vec());
            }
            for at in 0..count {
                let mut items = self.items.clone();
                items.remove(at);
                keep(items);
            }
        }
        smaller.extend(within(&self.items, |items| Sql::List(List { items, ..self.clone() })));
        smaller
    }
}

/// Every way to shrink one of several parts.
fn within(parts: &[Sql], whole: impl Fn(Vec<Sql>) -> Sql) -> Vec<Sql> {
    let mut smaller = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        for step in part.steps() {
            let mut parts = parts.to_vec();
            parts[at] = step;
            smaller.push(whole(parts));
        }
    }
    smaller
}
