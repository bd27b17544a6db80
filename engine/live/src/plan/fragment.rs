//! Resolved SQL: text in which columns, tables and parameters are references. One query can be
//! rendered over the tables after a commit, before it, or over its changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use abide_schema::TableSpec;
use abide_schema::table::Kind;

use crate::catalog::{Catalog, WEIGHT, delta_name};
use crate::identifier::quoted;
use crate::plan::collation::Collation;

/// A table in one FROM clause.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its position in the catalog.
    pub(crate) table: usize,
    /// The alias that qualifies its columns; unique within a query.
    pub(crate) alias: String,
    /// Whether a restricted caller named it. Its other sources only decide which rows are visible.
    pub(crate) is_named: bool,
}

/// The rows that a source stands for in one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceForm {
    /// The table after the commit.
    After,
    /// The table before the commit: the unchanged rows and the old images.
    Before,
    /// The old and new images of the rows that changed.
    Changed,
    /// One given row; its cells are given values from this number on.
    Given(usize),
}

/// A part of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Literal text.
    Text(String),
    /// A column (second) of a source (first).
    Column(usize, usize),
    /// A parameter, by its slot.
    Param(usize),
    /// A source in a FROM clause.
    Source(usize),
    /// A source in the FROM clause of a condition that the plan added. Unlike a subquery of the
    /// query, the condition follows from the others, so no rule depends on it.
    AddedSource(usize),
    /// The n-th value that the rule supplies.
    Given(usize),
    /// The start or end of a part that some rule extracts. Not rendered.
    Mark(Mark),
    /// A column (third) of a subquery in FROM (second), as text (first).
    Derived(Arc<str>, usize, usize),
    /// A redundant condition (second) that lets SQLite use an index if the columns of a value
    /// (first) are given. Omitted otherwise.
    Hint(Box<(Fragment, Fragment)>),
}

/// The meaning of a [`Piece::Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    /// An aggregate begins.
    Aggregate(Aggregate),
    /// Its argument begins.
    Argument,
    /// Its argument ended.
    ArgumentEnd,
    /// The condition of its FILTER begins.
    Filter,
    /// The condition of its FILTER ended.
    FilterEnd,
    /// The aggregate ended.
    End,
    /// A value begins that a function reads. Unlike other marks it is rendered if the catalog has a
    /// function that counts the bytes of such values.
    Read,
    /// The same in an expression of a restricted caller, which reads visible rows only.
    VisibleRead,
    /// The value ended, which the function reads so many times.
    ReadEnd(usize),
    /// The name of the function that counts a visible row, if the catalog has one. The columns of
    /// the row's key follow.
    Visible,
    /// A column begins whose table is read before the table that it is compared with. Rendered as
    /// `+`, for which SQLite uses no index of the column, in queries that join several tables of a
    /// restricted caller: a loop over owners around another table would repeat what is counted for
    /// it, once for each owner that the caller may not see.
    ReadBefore,
    /// A value that a live query chooses from equal ones which need not be identical.
    Chosen,
}

/// Aggregates, by how they can be maintained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Aggregate {
    /// `count(*)`, all rows.
    Rows,
    /// `count(x)`.
    Count,
    /// `sum(x)`.
    Sum,
    /// `total(x)`.
    Total,
    /// `avg(x)`.
    Average,
    /// `min(column)`.
    Min,
    /// `max(column)`.
    Max,
    /// Maintained only by reading all rows again.
    Other,
}

/// The kind of a fragment inside its parentheses, if routing and shape depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainExpr {
    /// A column (second) of a source (first).
    Column(usize, usize),
    /// A column (second) of a subquery in FROM (first).
    Derived(usize, usize),
    /// A parameter, by its slot.
    Param(usize),
    /// Anything else.
    Other,
}

/// The conversion that SQLite applies to the other side of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// None.
    #[default]
    None,
    /// Conversion to the type of this name, if possible.
    To(&'static str),
    /// Not defined: a column of a compound whose SELECTs differ in affinity.
    Open,
}

impl Affinity {
    /// Returns the affinity of a column of a compound, from those of its SELECTs.
    pub(crate) fn common(arms: impl IntoIterator<Item = Affinity>) -> Affinity {
        let mut arms = arms.into_iter();
        let first = arms.next().unwrap_or_default();
        if arms.all(|arm| arm == first) { first } else { Affinity::Open }
    }

    /// Returns the affinity of a type name, by the rules of SQLite's documentation, "Determination
    /// Of Column Affinity".
    pub(crate) fn from_type(name: &str) -> Affinity {
        let name = name.to_ascii_uppercase();
        let contains_any = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        if contains_any(&["INT"]) {
            Affinity::To("INTEGER")
        } else if contains_any(&["CHAR", "CLOB", "TEXT"]) {
            Affinity::To("TEXT")
        } else if contains_any(&["BLOB"]) || name.is_empty() {
            Affinity::None
        } else if contains_any(&["REAL", "FLOA", "DOUB"]) {
            Affinity::To("REAL")
        } else {
            Affinity::To("NUMERIC")
        }
    }
}

/// The values of columns of subqueries in FROM, by subquery and column.
pub(crate) type DerivedColumns = HashMap<(usize, usize), Fragment>;

/// A piece of resolved SQL, mostly an expression.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) plain: PlainExpr,
    /// The COLLATE at its end.
    pub(crate) collation: Option<Collation>,
    /// Whether there is a COLLATE inside, which SQLite may ignore.
    pub(crate) collates_within: bool,
    /// Whether it contains an aggregate.
    pub(crate) aggregates: bool,
    /// Whether it names a column of a subquery in FROM.
    pub(crate) derived: bool,
    /// Whether it contains a window function.
    pub(crate) windows: bool,
    /// Whether it may be evaluated on rows that a restricted caller may not see: an indexed column,
    /// a constant, or comparisons of these. Appending anything clears the flag.
    pub(crate) harmless: bool,
    /// The kind of all its non-NULL values, if certain and not given by a column.
    pub(crate) kind: Option<Kind>,
    /// Its affinity in comparisons, if not given by a column.
    pub(crate) affinity: Affinity,
    /// Whether it is an output or group expression that names no column of its own SELECT, so that
    /// it has one value for all rows.
    pub(crate) fixed: bool,
}

impl PartialEq for Fragment {
    fn eq(&self, other: &Fragment) -> bool {
        self.pieces == other.pieces
    }
}

impl Eq for Fragment {}

impl Fragment {
    /// Creates an empty fragment.
    pub(crate) fn new() -> Fragment {
        let plain = PlainExpr::Other;
        Fragment {
            pieces: Vec::new(),
            plain,
            collation: None,
            collates_within: false,
            aggregates: false,
            derived: false,
            windows: false,
            harmless: false,
            kind: None,
            affinity: Affinity::None,
            fixed: false,
        }
    }

    /// Returns a text.
    pub(crate) fn text(text: &str) -> Fragment {
        let mut fragment = Fragment::new();
        fragment.push_text(text);
        fragment
    }

    /// Returns a column.
    pub(crate) fn column(source: usize, column: usize) -> Fragment {
        let mut fragment = Fragment::new();
        fragment.pieces.push(Piece::Column(source, column));
        fragment.plain = PlainExpr::Column(source, column);
        fragment
    }

    /// Returns a parameter.
    pub(crate) fn param(slot: usize) -> Fragment {
        let mut fragment = Fragment::new();
        fragment.pieces.push(Piece::Param(slot));
        fragment.plain = PlainExpr::Param(slot);
        fragment.harmless = true;
        fragment
    }

    /// Appends a text, separated by a space if necessary. Ignores an empty text.
    pub(crate) fn push_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Piece::Text(last)) = self.pieces.last_mut() {
            append(last, text);
        } else {
            self.pieces.push(Piece::Text(text.to_owned()));
        }
        self.grows();
    }

    /// Returns a table of a FROM clause.
    pub(crate) fn source(source: usize) -> Fragment {
        let mut fragment = Fragment::new();
        fragment.pieces.push(Piece::Source(source));
        fragment
    }

    /// Returns a column of a subquery in FROM.
    pub(crate) fn derived(alias: &str, name: &str, subquery: usize, column: usize) -> Fragment {
        let mut fragment = Fragment::new();
        let text = format!("{}.{}", quoted(alias), quoted(name));
        fragment.pieces.push(Piece::Derived(text.into(), subquery, column));
        fragment.plain = PlainExpr::Derived(subquery, column);
        fragment.derived = true;
        fragment
    }

    /// Nothing but a hint: a condition that lets SQLite use an index if the columns of a value are
    /// given.
    pub(crate) fn hint(value: &Fragment, condition: Fragment) -> Fragment {
        let mut fragment = Fragment::new();
        fragment.pieces.push(Piece::Hint(Box::new((value.clone(), condition))));
        fragment
    }

    /// Returns the same fragment with this kind.
    pub(crate) fn with_kind(mut self, kind: Option<Kind>) -> Fragment {
        self.kind = kind;
        self
    }

    /// Returns the value with this affinity. A CASE and the result of a function have none of their
    /// own; a CAST to the type that the value has anyway leaves it as it is.
    pub(crate) fn with_affinity(&self, affinity: Affinity) -> Fragment {
        let mut value = Fragment::new();
        if let Affinity::To(name) = affinity {
            value.push_text("CAST(");
            value.push(self);
            value.push_text(&format!("AS {name})"));
        } else {
            value.push(self);
        }
        value.affinity = affinity;
        value
    }

    /// `this IS ?`, with a value that the rule supplies.
    pub(crate) fn not_distinct_from_given(&self, at: usize) -> Fragment {
        let mut fragment = Fragment::text("(");
        fragment.push(self);
        fragment.push_text(") IS");
        fragment.pieces.push(Piece::Given(at));
        fragment
    }

    /// `this = ?` with a value that the rule supplies, or `this IS NULL`.
    pub(crate) fn equals_given(&self, at: usize, is_null: bool) -> Fragment {
        let mut fragment = Fragment::text("(");
        fragment.push(self);
        fragment.push_text(if is_null { ") ISNULL" } else { ") =" });
        fragment.pieces.extend((!is_null).then_some(Piece::Given(at)));
        fragment
    }

    /// Returns the approximate length as text.
    pub(crate) fn bytes(&self) -> usize {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::Hint(hint) => hint.0.bytes() + hint.1.bytes(),
            // An alias and a name.
            _ => 16,
        });
        pieces.sum()
    }

    /// Appends another fragment.
    pub(crate) fn push(&mut self, other: &Fragment) {
        for piece in &other.pieces {
            match piece {
                Piece::Text(text) => self.push_text(text),
                piece => self.pieces.push(piece.clone()),
            }
        }
        self.grows();
        self.collates_within |= other.has_collation();
        self.aggregates |= other.aggregates;
        self.derived |= other.derived;
        self.windows |= other.windows;
    }

    /// Clears the properties that hold only for the whole fragment.
    fn grows(&mut self) {
        self.plain = PlainExpr::Other;
        self.kind = None;
        self.affinity = Affinity::None;
        self.harmless = false;
        self.collates_within |= self.collation.take().is_some();
    }

    /// Returns the fragment in parentheses, which change neither affinity nor collation.
    pub(crate) fn parenthesized(&self) -> Fragment {
        if let [Piece::Column(..) | Piece::Derived(..) | Piece::Param(_)] = self.pieces.as_slice() {
            return self.clone();
        }
        let mut fragment = Fragment::text("(");
        fragment.push(self);
        fragment.push_text(")");
        fragment.plain = self.plain;
        fragment.kind = self.kind;
        fragment.affinity = self.affinity;
        fragment.collation = self.collation;
        fragment.collates_within = self.collates_within;
        fragment.harmless = self.harmless;
        fragment
    }

    /// Returns the same value as the argument of a function that reads it so many times. `mark` is
    /// [`Mark::Read`] or [`Mark::VisibleRead`].
    pub(crate) fn read_by_function(&self, mark: Mark, times: usize) -> Fragment {
        if self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) {
            // A constant, whose length is that of the text.
            return self.clone();
        }
        let mut out = Fragment::new();
        out.mark(mark);
        out.push(self);
        out.mark(Mark::ReadEnd(times));
        out
    }

    /// Adds a mark.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.pieces.push(Piece::Mark(mark));
    }

    /// Replaces columns of subqueries in FROM by their values; `None` if one is unknown.
    pub(crate) fn substituted(&self, known: &DerivedColumns) -> Option<Fragment> {
        if !self.derived {
            return Some(self.clone());
        }
        let mut out = Fragment::new();
        for piece in &self.pieces {
            match piece {
                Piece::Derived(_, subquery, column) => out.push(known.get(&(*subquery, *column))?),
                Piece::Text(text) => out.push_text(text),
                piece => out.pieces.push(piece.clone()),
            }
        }
        out.collation = self.collation;
        out.collates_within = self.collates_within;
        Some(out)
    }

    /// Replaces columns by text.
    pub(crate) fn replace_columns(&mut self, text: &dyn Fn(usize, usize) -> String) {
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Column(source, column) => self.push_text(&text(source, column)),
                Piece::Text(text) => self.push_text(&text),
                piece => self.pieces.push(piece),
            }
        }
    }

    /// Renumbers the parameters.
    pub(crate) fn renumber(&mut self, new: &dyn Fn(usize) -> usize) {
        for piece in &mut self.pieces {
            match piece {
                Piece::Param(slot) => *slot = new(*slot),
                Piece::Hint(hint) => {
                    hint.0.renumber(new);
                    hint.1.renumber(new);
                }
                _ => {}
            }
        }
        if let PlainExpr::Param(slot) = &mut self.plain {
            *slot = new(*slot);
        }
    }

    /// Returns the same fragment with this harmless flag.
    pub(crate) fn harmless_if(mut self, harmless: bool) -> Fragment {
        self.harmless = harmless;
        self
    }

    /// `true` if there is a COLLATE at its end or inside.
    pub(crate) fn has_collation(&self) -> bool {
        self.collation.is_some() || self.collates_within
    }

    /// `true` if it names only columns of sources and subqueries in FROM from these on.
    pub(crate) fn is_independent(&self, sources: usize, subqueries: usize) -> bool {
        self.pieces.iter().all(|piece| match piece {
            Piece::Column(source, _) => *source >= sources,
            Piece::Derived(_, subquery, _) => *subquery >= subqueries,
            _ => true,
        })
    }

    /// `true` if it is a column of a table or of a subquery in FROM.
    pub(crate) fn is_column(&self) -> bool {
        matches!(self.plain, PlainExpr::Column(..) | PlainExpr::Derived(..))
    }

    /// Returns the columns that it names.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Column(source, column) => Some((*source, *column)),
            _ => None,
        })
    }

    /// Returns the slots of the parameters that it names.
    pub(crate) fn params(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        let slots = self.pieces.iter().flat_map(|piece| -> Box<dyn Iterator<Item = usize> + '_> {
            match piece {
                Piece::Param(slot) => Box::new(std::iter::once(*slot)),
                Piece::Hint(hint) => Box::new(hint.0.params().chain(hint.1.params())),
                _ => Box::new(std::iter::empty()),
            }
        });
        Box::new(slots)
    }

    /// `true` if it has one value for all rows.
    pub(crate) fn is_constant(&self) -> bool {
        !self.derived && self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// `true` if it consists of literals and parameters only.
    pub(crate) fn is_flat_constant(&self) -> bool {
        self.is_flat() && self.columns().next().is_none()
    }

    /// `true` if it names no columns but those of tables.
    pub(crate) fn is_flat(&self) -> bool {
        !self.derived && !self.has_subquery()
    }

    /// `true` if a live query chooses one of several equal values in it, where SQLite would take
    /// the one that it happens to read first.
    pub(crate) fn chooses(&self) -> bool {
        self.pieces.contains(&Piece::Mark(Mark::Chosen))
    }

    /// `true` if it is EXISTS, perhaps in parentheses.
    pub(crate) fn is_exists(&self) -> bool {
        let Some(Piece::Text(text)) = self.pieces.first() else { return false };
        text.trim_start_matches('(').starts_with("EXISTS")
    }

    /// Returns the sources that it names and does not read in a subquery of its own.
    pub(crate) fn enclosing_sources(&self) -> BTreeSet<usize> {
        let own = self.own_sources();
        self.columns().map(|(source, _)| source).filter(|source| !own.contains(source)).collect()
    }

    /// Returns the sources that its subqueries read.
    pub(crate) fn own_sources(&self) -> BTreeSet<usize> {
        self.pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Source(source) | Piece::AddedSource(source) => Some(*source),
                _ => None,
            })
            .collect()
    }

    /// `true` if it contains a subquery.
    pub(crate) fn has_subquery(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Source(_)))
    }
}

/// The value of a parameter of a rendered statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arg {
    /// The binding's value in this slot.
    Slot(usize),
    /// The n-th value that the rule supplies.
    Given(usize),
}

/// A rendered statement and its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) args: Vec<Arg>,
}

/// Renders fragments as SQL.
pub(crate) struct Renderer<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) sources: &'a [Source],
    /// The rows that each source stands for.
    pub(crate) forms: Vec<SourceForm>,
    /// Whether FROM fixes the order in which the tables are read, by CROSS JOIN.
    pub(crate) has_fixed_order: bool,
    out: String,
    args: Vec<Arg>,
    known: HashMap<Arg, usize>,
}

impl<'a> Renderer<'a> {
    /// Creates a renderer over the tables after the commit.
    pub(crate) fn new(catalog: &'a Catalog, sources: &'a [Source]) -> Renderer<'a> {
        let forms = vec![SourceForm::After; sources.len()];
        Renderer {
            catalog,
            sources,
            forms,
            has_fixed_order: false,
            out: String::new(),
            args: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// Appends text.
    pub(crate) fn push_text(&mut self, text: &str) {
        append(&mut self.out, text);
    }

    /// Appends a fragment.
    pub(crate) fn push(&mut self, fragment: &Fragment) {
        for piece in &fragment.pieces {
            match piece {
                Piece::Text(text) => self.push_text(text),
                Piece::Column(source, column) => self.push_column(*source, *column),
                Piece::Param(slot) => self.push_arg(Arg::Slot(*slot)),
                Piece::Source(source) | Piece::AddedSource(source) => self.push_source(*source),
                Piece::Given(at) => self.push_arg(Arg::Given(*at)),
                Piece::Mark(mark) => self.push_work_call(*mark),
                Piece::Hint(hint) => {
                    let (value, condition) = &**hint;
                    let is_given = value
                        .columns()
                        .all(|(source, _)| matches!(self.forms[source], SourceForm::Given(_)));
                    if is_given {
                        self.push(condition);
                    }
                }
                Piece::Derived(text, ..) => self.push_text(text),
            }
        }
    }

    /// Appends a condition on a row. Its subqueries read their tables in the state that the row
    /// belongs to: for an old image that before the commit, for a new one that after it, and for a
    /// row that is the same in both either.
    pub(crate) fn push_in_state_of_row(&mut self, condition: &Fragment) {
        let row = condition.enclosing_sources().first().copied();
        match row {
            Some(row) if self.forms[row] == SourceForm::Changed => {
                self.push_text(&format!("CASE WHEN {}.{WEIGHT} < 0 THEN (", self.alias(row)));
                self.push_in_state(condition, SourceForm::Before);
                self.push_text(") ELSE (");
                self.push_in_state(condition, SourceForm::After);
                self.push_text(") END");
            }
            _ => {
                self.push_text("(");
                self.push_in_state(condition, SourceForm::After);
                self.push_text(") OR (");
                if let Some(row) = row {
                    self.push_same_before(row, condition);
                    self.push_text("AND");
                }
                self.push_in_state(condition, SourceForm::Before);
                self.push_text(")");
            }
        }
    }

    /// Appends the start of a CASE around a condition that SQLite evaluates after all others on the
    /// rows of this source, the last one of FROM. A policy with a subquery would be evaluated as
    /// soon as the row is read that it is about, before the session is looked up that says whose
    /// row it is: also for the rows of other tenants.
    pub(crate) fn push_case_after(&mut self, source: usize) {
        let column = self.catalog.table(self.sources[source].table).key[0];
        self.push_text("CASE WHEN");
        self.push_column(source, column);
        // Always true. SQLite leaves out `IS NOT NULL` of a column that cannot be NULL.
        self.push_text("IS");
        self.push_column(source, column);
        self.push_text("THEN (");
    }

    /// Appends the condition that a row of a table was the same before the commit, as far as a
    /// condition reads it. A row may have changed in other columns, even in such that the query
    /// does not read: then its own change is not one of the changes of the query.
    fn push_same_before(&mut self, source: usize, condition: &Fragment) {
        let table = self.catalog.table(self.sources[source].table);
        let key = column_list(table, table.key.iter().copied());
        let columns = condition.columns().filter(|(other, _)| *other == source);
        let read: BTreeSet<usize> =
            columns.map(|(_, column)| column).chain(table.key.iter().copied()).collect();
        let read = column_list(table, read);
        self.push_text("(");
        for (at, column) in table.key.iter().enumerate() {
            self.push_text(if at > 0 { "," } else { "" });
            self.push_column(source, *column);
        }
        self.push_text(&format!(
            ") NOT IN (SELECT {key} FROM {} GROUP BY {read} HAVING sum({WEIGHT}) <> 0)",
            delta_name(table)
        ));
    }

    /// Appends a fragment whose subqueries read their tables in one state.
    pub(crate) fn push_in_state(&mut self, fragment: &Fragment, state: SourceForm) {
        let forms = self.forms.clone();
        for source in fragment.own_sources() {
            self.forms[source] = state;
        }
        self.push(fragment);
        self.forms = forms;
    }

    /// Appends the call of a function that counts work.
    fn push_work_call(&mut self, mark: Mark) {
        let Some(functions) = self.catalog.work_functions() else { return };
        match mark {
            Mark::Read => self.push_text(&format!("{}(", functions.read)),
            Mark::VisibleRead => self.push_text(&format!("{}(", functions.visible_read)),
            Mark::ReadEnd(times) => self.push_text(&format!(", {times})")),
            Mark::Visible => self.push_text(functions.visible),
            Mark::ReadBefore if !self.has_fixed_order && self.joins_named_tables() => {
                self.push_text("+")
            }
            _ => {}
        }
    }

    /// `true` if a restricted caller named several tables.
    fn joins_named_tables(&self) -> bool {
        self.sources.iter().filter(|source| source.is_named).count() > 1
    }

    /// Returns the finished statement.
    pub(crate) fn finish(self) -> Statement {
        Statement { sql: self.out, args: self.args }
    }

    fn push_arg(&mut self, arg: Arg) {
        let args = &mut self.args;
        let at = *self.known.entry(arg).or_insert_with(|| {
            args.push(arg);
            args.len() - 1
        });
        self.push_text(&format!("?{}", at + 1));
    }

    fn push_column(&mut self, source: usize, column: usize) {
        let spec = &self.catalog.table(self.sources[source].table).columns[column];
        if let SourceForm::Given(first) = self.forms[source] {
            // A bare parameter has no affinity; the CAST has that of the column.
            self.push_text("CAST(");
            self.push_arg(Arg::Given(first + column));
            self.push_text(&format!("AS {})", spec.kind.sql()));
            return;
        }
        self.push_text(&format!("{}.{}", self.alias(source), quoted(spec.name)));
    }

    /// Returns the alias of a source in this rendering, in quotes.
    pub(crate) fn alias(&self, source: usize) -> String {
        let alias = &self.sources[source].alias;
        // The aliases differ so that a query plan shows which table is read in which form.
        match self.forms[source] {
            SourceForm::After => quoted(alias),
            SourceForm::Before => quoted(&format!("was_{alias}")),
            SourceForm::Changed => quoted(&format!("d_{alias}")),
            SourceForm::Given(_) => quoted(&format!("given_{alias}")),
        }
    }

    /// Appends a source as it appears in a FROM clause.
    pub(crate) fn push_source(&mut self, at: usize) {
        let source = &self.sources[at];
        let table = self.catalog.table(source.table);
        let alias = self.alias(at);
        let main = format!("main.{}", quoted(table.name));
        let changed = delta_name(table);
        match self.forms[at] {
            SourceForm::After => self.push_text(&format!("{main} AS {alias}")),
            SourceForm::Changed => self.push_text(&format!("{changed} AS {alias}")),
            SourceForm::Given(_) => self.push_text(&format!("(SELECT 1) AS {alias}")),
            SourceForm::Before => {
                let columns = column_list(table, 0..table.columns.len());
                let key = column_list(table, table.key.iter().copied());
                self.push_text(&format!(
                    "(SELECT {columns} FROM {main} \
                     WHERE ({key}) NOT IN (SELECT {key} FROM {changed}) \
                     UNION ALL SELECT {columns} FROM {changed} WHERE {WEIGHT} < 0) AS {alias}"
                ));
            }
        }
    }
}

/// Returns the names of columns, quoted and separated by commas.
fn column_list(table: &TableSpec, columns: impl IntoIterator<Item = usize>) -> String {
    let names: Vec<String> =
        columns.into_iter().map(|column| quoted(table.columns[column].name)).collect();
    names.join(", ")
}

/// Appends one or more tokens, separated by a space if necessary.
fn append(out: &mut String, text: &str) {
    let tight = out.is_empty() || out.ends_with('(') || text.starts_with([',', ')']);
    if !tight && !text.is_empty() {
        out.push(' ');
    }
    out.push_str(text);
}

/// Appends a list of fragments.
pub(crate) fn push_list(out: &mut Fragment, list: &[Fragment]) {
    for (at, item) in list.iter().enumerate() {
        if at > 0 {
            out.push_text(",");
        }
        out.push(item);
    }
}

/// `true` if all of these are harmless.
pub(crate) fn all_harmless<'f>(all: impl IntoIterator<Item = &'f Fragment>) -> bool {
    all.into_iter().all(|fragment| fragment.harmless)
}
