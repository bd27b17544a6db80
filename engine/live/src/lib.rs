//! Live SQL: plans a query, finds the commits that affect it, and computes the exact change of its
//! result.
//!
//! Changes when the set of queries that can be live changes, or their cost. The crate has no
//! threads, no sockets and no connection: all SQL runs through the [`Sql`] trait. SQLite itself
//! evaluates every predicate and expression, over temporary tables that hold the changed rows of a
//! commit.
//!
//! In reading order: [`Catalog`] the tables · [`Planner`] from a text to a [`Binding`] · `lower`,
//! `from`, `core`, `order` and `select` the query as resolved fragments of SQL, `expansion` limits
//! on its size · `rule` the delta rules, `reach` which outer rows a change affects · `template` the
//! statements of a query, [`Scan`] the tables that they would scan · `route`, `interval` and
//! `lookup` which changes can affect it · [`Router`] the index over all bindings · [`Changes`] in,
//! [`Delta`] out.
//!
//! *Invariant:* no SQL semantics are reimplemented here. The router's knowledge of affinity and
//! collation only adds candidates; SQLite decides.

mod advice;
mod catalog;
mod changes;
mod condition;
mod core;
mod delta;
mod exact;
mod expansion;
mod fragment;
mod from;
mod functions;
mod interval;
mod kind;
mod lex;
mod listed;
mod lookup;
mod lower;
mod meter;
mod order;
mod planner;
mod reach;
mod route;
mod router;
mod rule;
mod select;
mod sql;
mod state;
mod tally;
mod template;
mod viewer;
mod window;

pub use advice::{Part, Scan};
pub use catalog::Catalog;
pub use changes::{Changes, RowChange};
pub use condition::{Condition, OWN, check_condition};
pub use delta::{Delta, Placed, Window};
pub use lex::{check_no_nul, names_main, operations};
pub use meter::{Budget, Spent, TemplateWork};
pub use planner::Planner;
pub use router::{BindingId, Router, Wanted, Work};
pub use sql::{Allowance, Fault, LiveError, Sql, SqlError};
pub use tally::Filled;
pub use template::{Binding, Explanation};
pub use viewer::{Edition, Outlook, Owner, Viewer, Within, select_of};
