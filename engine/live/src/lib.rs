//! Live SQL: understands a query, finds which commits concern it, and says exactly what they change in it.
//!
//! Changes when the set of queries that can be live changes, or what it costs to keep them so. It has
//! no threads, no sockets and no connection: all SQL runs through the [`Sql`] trait, and SQLite itself
//! evaluates every predicate and expression, over temporary tables that hold a commit's changed rows.
//!
//! In reading order: [`Catalog`] the tables · [`Planner`] from a text to a [`Binding`] · `lower`, `from`,
//! `core`, `order` and `select` the query as resolved fragments of SQL, `expansion` how large it may become · `rule` the delta rules, `reach`
//! how far a change has a say · `template` the statements of a query, [`Scan`] what they would read
//! whole · `route`, `interval` and `lookup` which changes can concern it · [`Router`] the index over all
//! bindings · [`Changes`] in, [`Delta`] out.
//!
//! *Invariant:* no SQL semantics are written a second time here. What the router knows of affinity and
//! collation only widens its net; SQLite decides.

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
