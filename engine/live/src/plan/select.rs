//! A whole query, resolved: its SELECTs, its outputs and their order, and its shape.

use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{CompoundOperator, Select};

use crate::plan::fragment::Fragment;
use crate::plan::lowering::Lowering;
use crate::plan::query::{Query, SelectCore};
use crate::plan::scope::Scope;
use crate::plan::syntax::unsupported;

impl Query {
    /// Resolves a whole statement. `written` is the text of its columns.
    pub(crate) fn resolve(
        mut lower: Lowering,
        select: &Select,
        written: &[String],
    ) -> Result<Query, Refusal> {
        let mut query = lower.select(select, written, &Scope::default())?;
        if lower.sources.is_empty() && !lower.once {
            return Err(unsupported("a query that reads no table"));
        }
        query.find_key(&lower);
        query.routes = (0..lower.sources.len()).map(|source| lower.route_of(source)).collect();
        query.sources = lower.sources;
        query.blocks = lower.blocks;
        query.slots = lower.slots;
        Ok(query)
    }
}

impl Lowering<'_> {
    /// Lowers a SELECT with everything below it.
    pub(crate) fn select(
        &mut self,
        select: &Select,
        written: &[String],
        outer: &Scope,
    ) -> Result<Query, Refusal> {
        let named = self.enter_with(select.with.as_ref())?;
        let lifting = std::mem::replace(&mut self.lifting, false);
        let mut cores = Vec::new();
        let (core, mut scope) = self.core(&select.body.select, written, outer)?;
        cores.push((None, core));
        for compound in select.body.compounds.iter().flatten() {
            let (core, _) = self.core(&compound.select, &[], outer)?;
            if core.outputs.len() != cores[0].1.outputs.len() {
                let detail = "the SELECTs of a compound do not have the same number of columns";
                return Err(Refusal::new(Code::BadSql, detail));
            }
            cores.push((Some(compound.operator), core));
        }
        self.require_one_form(&cores)?;
        let mut query = Query { cores, ..Query::default() };
        let around = self.block.replace(query.first_core().block);
        query.first_core_mut().frame.windowed = true;
        self.read_order(&mut query, select.order_by.unwrap_or(&[]), &mut scope)?;
        self.block = around;
        for (_, core) in &mut query.cores {
            self.check_bare_columns(core)?;
            self.seal(core);
        }
        if let Some(limit) = select.limit {
            let nothing = Scope::default();
            let count = self.expr(&limit.expr, &nothing)?;
            let offset = limit.offset.as_ref().map(|expr| self.expr(expr, &nothing)).transpose()?;
            if count.has_subquery() || offset.as_ref().is_some_and(Fragment::has_subquery) {
                return Err(unsupported("a subquery in LIMIT"));
            }
            query.limit = Some((count, offset));
        }
        self.lifting = lifting;
        self.leave_with(named);
        Ok(query)
    }
}

impl Lowering<'_> {
    /// UNION, EXCEPT and INTERSECT merge equal rows. Equal values must be identical, otherwise the
    /// shown one would be arbitrary (1 or 1.0, 'a' or 'A').
    fn require_one_form(
        &self,
        cores: &[(Option<CompoundOperator>, SelectCore)],
    ) -> Result<(), Refusal> {
        let merges_rows = cores.iter().any(|(operator, _)| {
            operator.is_some_and(|operator| operator != CompoundOperator::UnionAll)
        });
        if !merges_rows {
            return Ok(());
        }
        for (at, first) in cores[0].1.outputs.iter().enumerate() {
            let expected = self.form_of(&first.value);
            let is_uniform = expected.is_some()
                && cores.iter().all(|(_, core)| self.form_of(&core.outputs[at].value) == expected);
            if !is_uniform {
                return Err(unsupported(&format!(
                    "UNION, EXCEPT or INTERSECT if the type of column {} can differ between rows",
                    first.name
                ))
                .hint("use CAST(… AS …) on that column in every SELECT, or use UNION ALL"));
            }
        }
        Ok(())
    }
}
