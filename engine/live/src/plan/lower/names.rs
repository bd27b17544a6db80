//! Names: columns, aliases, rowid, parameters, schemas.

use abide_schema::{Code, Listing, Refusal};

use crate::identifier::unquote;
use crate::plan::condition::is_of_caller;
use crate::plan::fragment::Fragment;
use crate::plan::lex::{self, Parameter};
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::query::Slot;
use crate::plan::scope::{Entry, Scope};

impl Lowering<'_> {
    /// Declares the parameters of the text, in text order.
    pub(crate) fn declare(&mut self, parameters: &[Parameter]) {
        for parameter in parameters {
            let slots = &mut self.slots;
            let slot = *self.numbered.entry(parameter.number).or_insert_with(|| {
                slots.push(Slot::Caller(parameter.name.clone()));
                slots.len() - 1
            });
            self.named.insert(parameter.name.clone(), slot);
        }
    }

    /// Lowers a parameter that the query declares.
    pub(super) fn variable(&mut self, written: &str) -> Lowered {
        if self.trusted {
            return Ok(Fragment::param(self.principal_slot(lex::parameter_name(written))?));
        }
        let slot = self
            .named
            .get(lex::parameter_name(written))
            .ok_or_else(|| Refusal::new(Code::BadSql, "parameters are not allowed in views"))?;
        Ok(Fragment::param(*slot))
    }

    /// Returns the slot of a caller attribute, in a policy's text.
    fn principal_slot(&mut self, name: &str) -> Lowered<usize> {
        let slot = Slot::Principal(name.to_owned());
        if let Some(known) = self.slots.iter().position(|known| *known == slot) {
            return Ok(known);
        }
        if !is_of_caller(name) {
            return Err(Refusal::new(Code::BadSql, format!("no such parameter: {name}")));
        }
        self.slots.push(slot);
        Ok(self.slots.len() - 1)
    }

    /// Lowers a bare name: a column, or else an alias, of the innermost SELECT that has it; or else TRUE or FALSE.
    pub(super) fn name(&mut self, raw: &str, scope: &Scope) -> Lowered {
        let name = unquote(raw);
        let mut level = Some(scope);
        while let Some(scope) = level {
            if let Some(found) = in_scope(None, &name, scope)? {
                self.record_use(&found, scope.depth);
                return Ok(found);
            }
            let alias = scope.aliases.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(&name));
            if let Some((_, value)) = alias {
                if value.aggregates && !self.frame.aggregates_allowed {
                    let detail = format!("misuse of aliased aggregate {name}");
                    return Err(Refusal::new(Code::BadSql, detail));
                }
                return Ok(value.parenthesized());
            }
            level = scope.outer;
        }
        let bare = raw == name;
        if bare && (name.eq_ignore_ascii_case("true") || name.eq_ignore_ascii_case("false")) {
            return Ok(Fragment::text(&name.to_ascii_uppercase()));
        }
        let refusal = Refusal::new(Code::BadSql, format!("no such column: {name}"));
        Err(if raw.starts_with('"') {
            refusal.hint(format!("write text in single quotes: '{name}'"))
        } else {
            refusal.hint(Listing::Columns.hint())
        })
    }

    /// Records that the current expression uses a column of the SELECT at this depth. An argument of an aggregate may
    /// use any column; outside of aggregates, the column must have one value in all rows of its group, which is checked
    /// once the SELECT is complete ([`Lowering::check_bare_columns`]).
    fn record_use(&mut self, column: &Fragment, depth: usize) {
        self.frame.reads |= 1 << depth;
        if !self.frame.in_aggregate {
            self.frame.record_bare_columns(column);
        }
    }

    /// Lowers `table.column`, of the innermost SELECT that has it.
    pub(super) fn qualified(&mut self, table: &str, column: &str, scope: &Scope) -> Lowered {
        let column = unquote(column);
        let mut level = Some(scope);
        while let Some(scope) = level {
            if let Some(found) = in_scope(Some(table), &column, scope)? {
                self.record_use(&found, scope.depth);
                return Ok(found);
            }
            level = scope.outer;
        }
        Err(Refusal::new(Code::BadSql, format!("no such column: {table}.{column}"))
            .hint(Listing::Columns.hint()))
    }
}

/// Returns the column or the rowid that a name refers to in one SELECT; `None` if it has none of this name.
///
/// # Errors
/// The name is ambiguous.
fn in_scope(table: Option<&str>, column: &str, scope: &Scope) -> Lowered<Option<Fragment>> {
    let mut found = scope
        .entries_named(table)
        .filter(|entry| table.is_some() || !entry.is_merged(column))
        .flat_map(|entry| entry.columns.iter().map(move |(name, value)| (entry, name, value)))
        .filter(|(_, name, _)| name.eq_ignore_ascii_case(column))
        .map(|(entry, name, value)| match table {
            None => entry.bare_column(name).unwrap_or(value),
            Some(_) => value,
        });
    if let Some(fragment) = found.next() {
        if found.next().is_some() {
            let name = table.map_or(column.to_owned(), |table| format!("{table}.{column}"));
            return Err(Refusal::new(Code::BadSql, format!("ambiguous column name: {name}"))
                .hint("qualify it with its table: t.column"));
        }
        return Ok(Some(fragment.parenthesized()));
    }
    let is_rowid = ["rowid", "oid", "_rowid_"].iter().any(|name| name.eq_ignore_ascii_case(column));
    let mut with_rowid = scope.entries_named(table);
    if is_rowid
        && let (Some(Entry { rowid: Some(rowid), .. }), None) =
            (with_rowid.next(), with_rowid.next())
    {
        return Ok(Some(rowid.clone()));
    }
    Ok(None)
}
