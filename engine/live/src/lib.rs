//! Live SQL: plans a query, finds the commits that affect it, and computes the exact change of its
//! result.
//!
//! Changes when the set of queries that can be live changes, or their cost. The crate has no
//! threads, no sockets and no connection: all SQL runs through the [`Sql`] trait. SQLite itself
//! evaluates every predicate and expression, over temporary tables that hold the changed rows of a
//! commit.
//!
//! In reading order: [`Catalog`] the tables · [`Planner`] from a text to a [`Binding`] · `plan` the
//! query as resolved fragments of SQL · `delta` the rules that compute the change of a result, and
//! which outer rows a change affects · `route` the keys, intervals and lookups by which a changed
//! row finds bindings · `template` the statements of a query, [`Scan`] the tables that they would
//! scan · `bindings` the index over those with subscribers · `views` what restricted callers see of
//! a commit · [`Router`] the deltas of a commit · [`Changes`] in, [`Delta`] out.
//!
//! The files depend on each other in one direction: `plan` ← `delta` ← `route` ← `template` ←
//! `planner`, `analysis` and `bindings` ← `views` ← `router`. In `plan`, the values come first
//! (`fragment`, `conjunct`, `block`, `query`), then the state of the lowering of a statement
//! (`lowering`), then the files that add methods to it, one for each part of a SELECT.
//!
//! *Invariant:* no SQL semantics are reimplemented here. The router's knowledge of affinity and
//! collation only adds candidates; SQLite decides.

mod analysis;
mod bindings;
mod catalog;
mod delta;
mod identifier;
mod plan;
mod planner;
mod route;
mod router;
mod sql;
mod template;
mod views;

pub use analysis::{Scan, StatementPurpose};
pub use bindings::WorkCounters;
pub use catalog::{Catalog, WorkFunctions};
pub use delta::accumulator::BackfilledGroup;
pub use delta::changes::{Changes, RowChange};
pub use delta::meter::{Budget, Cost, TemplateWork};
pub use delta::{Delta, DeltaJson, PositionedRow, TopNDelta};
pub use plan::condition::{Condition, OWN, check_condition, check_condition_syntax};
pub use plan::lex::{check_no_nul, names_main, operations};
pub use plan::principal::{
    AuthorizedViews, OwnerReference, PolicyVersion, QueryPrincipal, ScopeMembership,
    scope_parameter, scope_path, select_of,
};
pub use planner::Planner;
pub use route::binding_index::BindingId;
pub use router::{BackfillRequest, Router};
pub use sql::{LiveError, Sql, SqlError, SqlErrorKind, StatementLimits};
pub use template::{Binding, Explanation};
