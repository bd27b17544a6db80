//! Window functions: expands their windows and makes the order total.
//!
//! Rows that are equal in a window's order (peers) come in any order. A function that depends on
//! that order gets the key of the rows as the last order terms, if that does not change its
//! meaning. A frame bounded by peers would change, so such a query is refused.

use abide_schema::table::Kind;
use abide_schema::{Code, Refusal};
use sqlite3_parser::ast::{
    Expr, FrameBound, FrameClause, FrameExclude, FrameMode, Over, Window as Written, WindowDef,
};

use crate::identifier::unquote;
use crate::plan::fragment::{Fragment, Mark, Piece, push_list};
use crate::plan::functions::{self, Function, Windowed};
use crate::plan::lower::aggregate::{direction, is_extreme, no_key, push_filter};
use crate::plan::lower::call::{Call, misuse, open};
use crate::plan::lowering::{Lowered, Lowering};
use crate::plan::query::SelectCore;
use crate::plan::scope::Scope;
use crate::plan::syntax::unsupported;
use crate::plan::window_spec::{FrameDependency, FrameEdge, FrameSpec, WindowSpec};

impl Lowering<'_> {
    /// Declares the named windows of a SELECT. Each may extend an earlier one.
    pub(crate) fn read_windows(
        &mut self,
        core: &mut SelectCore,
        windows: &[WindowDef],
        scope: &Scope,
    ) -> Result<(), Refusal> {
        for definition in windows {
            let window = self.in_frame(core, |lower| lower.window(&definition.window, scope))?;
            core.frame.named.push((unquote(definition.name.0), window));
        }
        Ok(())
    }

    /// Lowers a function call with OVER.
    pub(super) fn windowed(
        &mut self,
        call: &Call,
        function: Function,
        over: &Over,
        scope: &Scope,
    ) -> Lowered {
        let aggregate = matches!(function, Function::Aggregate | Function::Sequence);
        if !aggregate && !matches!(function, Function::Window(_)) {
            return Err(misuse(&format!("{}() may not be used as a window function", call.name)));
        }
        if !std::mem::take(&mut self.frame.windowed) {
            return Err(misuse(&format!("misuse of window function {}()", call.name)));
        }
        if call.distinct {
            return Err(misuse("DISTINCT is not supported for window functions"));
        }
        if !aggregate && (call.star || call.filter().is_some()) {
            return Err(misuse("FILTER clause may only be used with aggregate window functions"));
        }
        if !call.order.is_empty() {
            let detail = format!("ORDER BY may not be used with non-aggregate {}()", call.name);
            return Err(misuse(&detail));
        }
        let arguments = self.arguments(call, scope)?;
        self.require_no_collation(call, &arguments)?;
        let filter = call.filter().map(|filter| self.expr(filter, scope)).transpose()?;
        let window = match over {
            Over::Name(name) => self.named_window(&unquote(name.0))?,
            Over::Window(window) => self.window(window, scope)?,
        };
        let frame_dependency = self.frame_dependency(call, function, &arguments);
        let window = self.with_total_order(call, frame_dependency, window)?;
        let partition = window
            .partition
            .iter()
            .filter(|by| {
                !by.has_subquery()
                    && !by.pieces.iter().any(|piece| matches!(piece, Piece::Param(_)))
            })
            .cloned()
            .collect();
        self.frame.partitions.push(partition);
        self.frame.windowed = true;
        let mut out = Fragment::new();
        if is_extreme(call) && arguments.iter().any(|only| self.form_of(only).is_none()) {
            out.mark(Mark::Chosen);
        }
        out.push(&open(call));
        let times = usize::from(functions::is_sequence(&call.name));
        let read = arguments.iter().map(|value| self.read(value, times));
        push_list(&mut out, &read.collect::<Vec<Fragment>>());
        out.push_text(")");
        push_filter(&mut out, filter.as_ref());
        window.write(&mut out);
        out.windows = true;
        Ok(out.with_kind(self.kind_of_call(call, &arguments)))
    }

    fn named_window(&self, name: &str) -> Result<WindowSpec, Refusal> {
        let mut named = self.frame.named.iter().rev();
        named
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, window)| window.clone())
            .ok_or_else(|| {
                Refusal::new(Code::BadSql, format!("no such window: {name}"))
                    .hint("define it: `WINDOW name AS (PARTITION BY … ORDER BY …)`")
            })
    }

    fn window(&mut self, written: &Written, scope: &Scope) -> Lowered<WindowSpec> {
        let mut window = match &written.base {
            Some(name) => self.base_window(&unquote(name.0), written)?,
            None => WindowSpec::default(),
        };
        for by in written.partition_by.unwrap_or(&[]) {
            window.partition.push(self.expr(by, scope)?);
        }
        for term in written.order_by.unwrap_or(&[]) {
            let value = self.expr(&term.expr, scope)?;
            window.order.push((value, direction(term)));
        }
        window.frame = written.frame_clause.as_ref().map(|frame| self.span(frame)).transpose()?;
        Ok(window)
    }

    /// Returns a window that another one extends, as far as SQLite allows.
    fn base_window(&self, name: &str, upon: &Written) -> Result<WindowSpec, Refusal> {
        let base = self.named_window(name)?;
        let overridden = if upon.partition_by.is_some() {
            "PARTITION clause"
        } else if upon.order_by.is_some() && !base.order.is_empty() {
            "ORDER BY clause"
        } else if base.frame.is_some() {
            "frame specification"
        } else {
            return Ok(base);
        };
        Err(misuse(&format!("cannot override {overridden} of window: {name}")))
    }

    fn span(&mut self, frame: &FrameClause) -> Lowered<FrameSpec> {
        Ok(FrameSpec {
            mode: frame.mode,
            start: self.bound_of(&frame.start)?,
            end: frame.end.as_ref().map_or(Ok(FrameEdge::Current), |end| self.bound_of(end))?,
            exclude: frame.exclude.clone().unwrap_or(FrameExclude::NoOthers),
        })
    }

    fn bound_of(&mut self, bound: &FrameBound) -> Lowered<FrameEdge> {
        Ok(match bound {
            FrameBound::UnboundedPreceding => FrameEdge::First,
            FrameBound::Preceding(expr) => FrameEdge::Preceding(self.frame_offset(expr)?),
            FrameBound::CurrentRow => FrameEdge::Current,
            FrameBound::Following(expr) => FrameEdge::Following(self.frame_offset(expr)?),
            FrameBound::UnboundedFollowing => FrameEdge::Last,
        })
    }

    fn frame_offset(&mut self, expr: &Expr) -> Lowered {
        let offset = self.expr(expr, &Scope::default())?;
        if offset.has_subquery() {
            return Err(unsupported("a subquery in a frame"));
        }
        Ok(offset)
    }

    fn frame_dependency(
        &self,
        call: &Call,
        function: Function,
        arguments: &[Fragment],
    ) -> FrameDependency {
        let name = call.name.to_ascii_lowercase();
        let argument = arguments.first();
        match function {
            Function::Window(Windowed::Rank) => FrameDependency::Peers,
            Function::Window(Windowed::Place) => FrameDependency::Rows,
            Function::Window(Windowed::Pick) if name == "first_value" => FrameDependency::First,
            Function::Window(Windowed::Pick) if name == "last_value" => FrameDependency::Last,
            Function::Aggregate if name == "count" => FrameDependency::Set,
            Function::Aggregate if name == "min" || name == "max" => argument
                .and_then(|argument| self.form_of(argument))
                .map_or(FrameDependency::Sequence, |_| FrameDependency::Set),
            // A sum of integers is exact; a sum of reals is rounded at every step.
            Function::Aggregate => {
                let kind = argument.and_then(|argument| self.kind_of(argument));
                if kind == Some(Kind::Integer) {
                    FrameDependency::Set
                } else {
                    FrameDependency::Sequence
                }
            }
            _ => FrameDependency::Sequence,
        }
    }

    /// Returns the window with an order in which the function's value does not depend on the order
    /// of peers.
    fn with_total_order(
        &self,
        call: &Call,
        frame_dependency: FrameDependency,
        window: WindowSpec,
    ) -> Lowered<WindowSpec> {
        let grouped = !self.frame.by.is_empty();
        let keys: Option<Vec<Fragment>> = if grouped {
            Some(self.frame.by.iter().map(|by| self.representative(by)).collect())
        } else {
            self.frame.rows.clone()
        };
        let is_total = keys.as_ref().is_some_and(|keys| window.orders_by(keys));
        let with_keys = |frame: Option<FrameSpec>| {
            let keys = keys.as_ref().ok_or_else(|| no_key(&call.name))?;
            Ok(WindowSpec { frame, ..window.clone() }.ordered_by(keys))
        };
        if frame_dependency == FrameDependency::Rows {
            return with_keys(None);
        }
        if frame_dependency == FrameDependency::Peers || is_total {
            return Ok(window);
        }
        let whole = window.frame_is_whole();
        let by_rows = window.frame.as_ref().is_some_and(|frame| frame.mode == FrameMode::Rows);
        if whole || (!by_rows && window.takes_an_end(frame_dependency)) {
            return if frame_dependency == FrameDependency::Set {
                Ok(window)
            } else {
                with_keys(Some(FrameSpec::whole()))
            };
        }
        if by_rows && !window.excludes_peers() {
            return with_keys(window.frame.clone());
        }
        if frame_dependency == FrameDependency::Set && !by_rows {
            return Ok(window);
        }
        let what = format!("{}() over rows that can be peers in its window", call.name);
        Err(unsupported(&what).hint("add a key to the window's ORDER BY, or use a ROWS frame"))
    }
}
