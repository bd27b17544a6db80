//! Shrinks a failing case while it fails in the same way: one query, fewer commits, statements and
//! rows, fewer tables and indexes, a smaller query.

use abide_schema::TableSpec;
use abide_schema::table::IndexSpec;

use crate::proof::case::Case;
use crate::proof::play::{Failure, InjectedBug, play};
use crate::proof::schema::{Schema, leak};
use crate::proof::tree::Sql;
use crate::proof::writes::Commit;

/// The maximum number of runs.
const PLAYS: usize = 6_000;

/// A smaller case with the same failure, and its failure.
pub(crate) fn shrink(case: &Case, failure: &Failure, bug: InjectedBug) -> (Case, Failure) {
    let mut best = (case.clone(), failure.clone());
    let only = case.subscriptions[failure.query].clone();
    let alone = Case { subscriptions: vec![only], ..case.clone() };
    let mut plays = 0;
    if let Some(failure) = fails_alike(&alone, failure, bug) {
        best = (alone, failure);
    }
    'smaller: loop {
        let size = best.0.size();
        for step in steps(&best.0, &best.1) {
            if step.size() >= size {
                continue;
            }
            plays += 1;
            if plays > PLAYS {
                return best;
            }
            if let Some(failure) = fails_alike(&step, &best.1, bug) {
                best = (step, failure);
                continue 'smaller;
            }
        }
        return best;
    }
}

fn fails_alike(case: &Case, failure: &Failure, bug: InjectedBug) -> Option<Failure> {
    play(case, bug).err().filter(|other| other.what == failure.what)
}

/// The cases that are one step smaller, the largest steps first.
fn steps(case: &Case, failure: &Failure) -> Vec<Case> {
    let mut steps = Vec::new();
    let commits = |commits: Vec<Commit>| Case { commits, ..case.clone() };
    // Commits after the failure are irrelevant.
    steps.push(commits(case.commits.iter().take(failure.commit + 1).cloned().collect()));
    for at in 0..case.subscriptions.len().saturating_sub(1) {
        let mut fewer = case.clone();
        fewer.subscriptions.remove(at);
        steps.push(fewer);
    }
    for at in 0..case.commits.len() {
        steps.push(without_commit(case, at));
    }
    for at in 0..case.commits.len() {
        for number in 0..case.commits[at].len() {
            let mut fewer = [case.commits[..at].to_vec(), case.commits[at..].to_vec()].concat();
            fewer[at].remove(number);
            steps.push(commits(fewer));
        }
    }
    steps.extend(fewer_tables(case));
    for (at, subscription) in case.subscriptions.iter().enumerate() {
        let mut push_query = |body: Sql, limit: Sql| {
            let mut other = case.clone();
            (other.subscriptions[at].query.body, other.subscriptions[at].query.limit) =
                (body, limit);
            steps.push(other);
        };
        let query = &subscription.query;
        query
            .limit
            .reductions()
            .into_iter()
            .for_each(|limit| push_query(query.body.clone(), limit));
        query.body.reductions().into_iter().for_each(|body| push_query(body, query.limit.clone()));
    }
    for at in 0..case.commits.len() {
        for number in 0..case.commits[at].len() {
            for smaller in case.commits[at][number].reductions() {
                let mut fewer = case.commits.clone();
                fewer[at][number] = smaller;
                steps.push(commits(fewer));
            }
        }
    }
    for (at, subscription) in case.subscriptions.iter().enumerate() {
        for name in subscription.query.named().keys() {
            for simple in ["null", "1", "\"a\""] {
                let mut other = case.clone();
                let value = serde_json::from_str(simple).expect("it is JSON");
                other.subscriptions[at].query.params.insert(name.clone(), value);
                steps.push(other);
            }
        }
    }
    steps
}

fn without_commit(case: &Case, at: usize) -> Case {
    let mut fewer = case.clone();
    fewer.commits.remove(at);
    for subscription in fewer.subscriptions.iter_mut().filter(|s| s.at > at) {
        subscription.at -= 1;
    }
    fewer
}

/// Without an unused table or view, and without an index.
fn fewer_tables(case: &Case) -> Vec<Case> {
    let mut steps = Vec::new();
    let with = |tables: Vec<&'static TableSpec>| {
        let views = case.schema.views.clone();
        Case { schema: Schema { tables, views }, ..case.clone() }
    };
    for at in 0..case.schema.views.len() {
        let mut fewer = case.clone();
        fewer.schema.views.remove(at);
        steps.push(fewer);
    }
    for (at, table) in case.schema.tables.iter().enumerate() {
        if case.schema.tables.len() > 1 {
            let mut tables = case.schema.tables.clone();
            tables.remove(at);
            let mut fewer = with(tables);
            fewer.commits.iter_mut().for_each(|commit| {
                commit.retain(|write| !write.text().split(' ').any(|word| word == table.name))
            });
            steps.push(fewer);
        }
        for index in 0..table.indexes.len() {
            let mut tables = case.schema.tables.clone();
            tables[at] = without_index(table, index);
            steps.push(with(tables));
        }
    }
    steps
}

fn without_index(table: &'static TableSpec, gone: usize) -> &'static TableSpec {
    let indexes =
        table.indexes.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, index)| {
            IndexSpec { columns: index.columns, unique: index.unique, condition: index.condition }
        });
    Box::leak(Box::new(TableSpec {
        name: table.name,
        doc: table.doc,
        columns: table.columns,
        key: table.key,
        without_rowid: table.without_rowid,
        shared: table.shared,
        indexes: leak(indexes.collect()),
        constraints: table.constraints,
        triggers: table.triggers,
    }))
}
