//! Items of FROM that are neither tables nor queries: the rows of VALUES, and the elements of a
//! JSON text. They depend only on constants and on columns of preceding items.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{Expr, QualifiedName};

use crate::identifier::{quoted, unquote};
use crate::plan::block::Join;
use crate::plan::fragment::{Fragment, Piece, push_list};
use crate::plan::from::FromContext;
use crate::plan::kind::common;
use crate::plan::lowering::Lowering;
use crate::plan::query::{FromTerm, Output, SelectCore};
use crate::plan::scope::{Entry, Scope};
use crate::plan::syntax::unsupported;

/// The columns of json_each() and json_tree().
const JSON_COLUMNS: [(&str, Option<Kind>); 8] = [
    ("key", None),
    ("value", None),
    ("type", Some(Kind::Text)),
    ("atom", None),
    ("id", Some(Kind::Integer)),
    ("parent", Some(Kind::Integer)),
    ("fullkey", Some(Kind::Text)),
    ("path", Some(Kind::Text)),
];

impl Lowering<'_> {
    /// Adds rows of VALUES.
    pub(crate) fn add_values(
        &mut self,
        core: &mut SelectCore,
        rows: &[Vec<Fragment>],
        scope: &mut Scope,
    ) {
        let alias = self.unique_alias("values");
        let mut item = Fragment::text("(VALUES");
        for (at, row) in rows.iter().enumerate() {
            item.push_text(if at > 0 { ", (" } else { "(" });
            push_list(&mut item, row);
            item.push_text(")");
        }
        item.push_text(&format!(") AS {}", quoted(&alias)));
        let number = self.next_number();
        let mut entry = Entry { name: alias.clone(), ..Entry::default() };
        for at in 0..rows[0].len() {
            let kind = common(rows.iter().map(|row| self.kind_of(&row[at])));
            let name = format!("column{}", at + 1);
            let value = Fragment::derived(&alias, &name, number, at).with_kind(kind);
            entry.columns.push((name.clone(), value.clone()));
            core.outputs.push(Output { value, name, hidden: false, aliased: false });
        }
        scope.entries.push(entry);
        core.from.push(FromTerm::without_source(number, item, Join::Inner, None));
    }

    /// Adds the elements of a JSON text.
    pub(crate) fn read_function(
        &mut self,
        core: &mut SelectCore,
        name: &QualifiedName,
        arguments: &[Expr],
        place: FromContext,
        scope: &mut Scope,
    ) -> Result<(), Refusal> {
        let function = unquote(name.name.0).to_ascii_lowercase();
        if !["json_each", "json_tree"].contains(&function.as_str()) || name.db_name.is_some() {
            let what = format!("the table-valued function {function}()");
            return Err(unsupported(&what).hint("use json_each() or json_tree()"));
        }
        if !(1..=2).contains(&arguments.len()) {
            let detail = format!("{function}() takes a JSON text and an optional path");
            return Err(Refusal::new(Code::BadSql, detail));
        }
        let shown = if place.alias.is_empty() { function.as_str() } else { place.alias };
        let alias = self.unique_alias(shown);
        let number = self.next_number();
        let columns: Vec<(String, Fragment)> = JSON_COLUMNS
            .iter()
            .enumerate()
            .map(|(at, (name, kind))| {
                let value = Fragment::derived(&alias, name, number, at).with_kind(*kind);
                ((*name).to_owned(), value)
            })
            .collect();
        let id = columns.iter().find(|(name, _)| name == "id").map(|(_, id)| vec![id.clone()]);
        scope.entries.push(Entry { name: shown.to_owned(), columns, ..Entry::default() });
        // As in SQLite, the arguments can name the function's own columns.
        let mut arguments = arguments
            .iter()
            .map(|argument| self.expr(argument, scope))
            .collect::<Result<Vec<Fragment>, Refusal>>()?;
        let mut pieces = arguments.iter().flat_map(|argument| &argument.pieces);
        if pieces.any(|piece| matches!(piece, Piece::Derived(_, named, _) if *named == number)) {
            let detail = format!("the arguments of {function}() name its own columns");
            return Err(Refusal::new(Code::BadSql, detail)
                .hint("qualify the column with its table: t.column"));
        }
        if self.is_bounded() {
            for argument in &mut arguments {
                *argument = self.null_unless_visible(core, argument);
            }
        }
        let mut item = Fragment::text(&format!("{function}("));
        push_list(&mut item, &arguments);
        item.push_text(&format!(") AS {}", quoted(&alias)));
        core.from.push(FromTerm::without_source(number, item, place.join, id));
        Ok(())
    }
}

impl FromTerm {
    /// Returns a term that lists rows itself: VALUES or a table-valued function.
    fn without_source(
        number: usize,
        item: Fragment,
        join: Join,
        key: Option<Vec<Fragment>>,
    ) -> FromTerm {
        FromTerm {
            source: None,
            derived: None,
            number: Some(number),
            item,
            join,
            on: Vec::new(),
            key,
        }
    }
}
