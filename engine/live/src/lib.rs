//! Live SQL: plans a query, finds the commits that affect it, and computes the exact change of its
//! result.
//!
//! Changes when the set of queries that can be live changes, or their cost. The crate has no
//! threads, no sockets and no connection: all SQL runs through the [`Sql`] trait. SQLite itself
//! evaluates every predicate and expression, over temporary tables that hold the changed rows of a
//! commit.
//!
//! In reading order: [`Catalog`] the tables · [`Planner`] from a text to a [`Binding`] · `lower`,
//! `from`, `select_core`, `order` and `select` the query as resolved fragments of SQL, `expansion` limits
//! on its size · `rule` the delta rules, `dependency_path` which outer rows a change affects · `template` the
//! statements of a query, [`Scan`] the tables that they would scan · `route`, `interval` and
//! `lookup` which changes can affect it · [`Router`] the index over all bindings · [`Changes`] in,
//! [`Delta`] out.
//!
//! *Invariant:* no SQL semantics are reimplemented here. The router's knowledge of affinity and
//! collation only adds candidates; SQLite decides.

mod catalog;
mod delta;
mod plan;
mod route;
mod sql;

pub use catalog::Catalog;
pub use delta::aggregates::BackfilledGroup;
pub use delta::changes::{Changes, RowChange};
pub use delta::meter::{Budget, Cost, TemplateWork};
pub use delta::{Delta, PositionedRow, WindowDelta};
pub use plan::analysis::{Scan, StatementPurpose};
pub use plan::condition::{Condition, OWN, check_condition};
pub use plan::lex::{check_no_nul, names_main, operations};
pub use plan::planner::Planner;
pub use plan::principal::{
    AuthorizedViews, OwnerReference, PolicyVersion, QueryPrincipal, ScopeMembership, select_of,
};
pub use plan::template::{Binding, Explanation};
pub use route::router::{BackfillRequest, BindingId, Router, WorkCounters};
pub use sql::{LiveError, Sql, SqlError, SqlErrorKind, StatementLimits};
