//! Plans: the steps that an agent intends to do.
//!
//! `replan` when a model revises its plan · `todo_list` the tool and its rows.

pub(crate) mod replan;
pub(crate) mod todo_list;
