//! A case: tables, queries that are subscribed at some commit, and commits. It is generated from a
//! seed, can be shrunk, and prints as runnable SQL.

use std::fmt::{self, Write as _};

use crate::proof::grammar::{self, Query};
use crate::proof::schema::Schema;
use crate::proof::writes::{self, Commit};
use crate::world::Random;

/// Queries of a case, and commits after its tables are filled.
const QUERIES: usize = 10;
const COMMITS: usize = 9;

/// A case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) schema: Schema,
    pub(crate) commits: Vec<Commit>,
    pub(crate) subscriptions: Vec<Subscribed>,
}

/// A query, and the commit after which it is subscribed.
#[derive(Clone, Debug)]
pub(crate) struct Subscribed {
    pub(crate) query: Query,
    pub(crate) at: usize,
}

impl Case {
    /// The case of a seed.
    pub(crate) fn of_seed(seed: u64) -> Case {
        let mut random = Random::new(seed ^ 0x11fe);
        let schema = Schema::random(&mut random);
        let schema = grammar::with_views(&mut random, schema);
        let mut commits = vec![writes::fill(&mut random, &schema)];
        commits.extend((0..COMMITS).map(|_| writes::commit(&mut random, &schema)));
        let mut subscriptions: Vec<Subscribed> = Vec::new();
        while subscriptions.len() < QUERIES {
            let at = *random.pick(&[0, 1, 1, 1, 1, 3, 5]);
            let query = match subscriptions.last() {
                Some(last) if random.below(6) == 0 => last.query.with_other_values(&mut random),
                _ => grammar::query(&mut random, &schema),
            };
            subscriptions.push(Subscribed { query, at });
        }
        Case { seed, schema, commits, subscriptions }
    }

    /// The size for shrinking.
    pub(crate) fn size(&self) -> usize {
        let queries = self.subscriptions.iter().map(|s| s.query.inlined().len() + s.at);
        let writes = self.commits.iter().flatten().map(|statement| statement.text().len());
        let tables = self.schema.ddl().iter().map(String::len).sum::<usize>();
        queries.sum::<usize>() + writes.sum::<usize>() + tables + self.commits.len()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for statement in self.schema.ddl() {
            writeln!(f, "{statement};")?;
        }
        for at in 0..=self.commits.len() {
            for subscription in self.subscriptions.iter().filter(|s| s.at == at) {
                writeln!(f, "-- subscribed here:\n{};", subscription.query.inlined())?;
                let named = subscription.query.named();
                if !named.is_empty() {
                    let params = serde_json::to_string(&named).unwrap_or_default();
                    writeln!(f, "-- as  {}  with {params}", subscription.query.text())?;
                }
            }
            let Some(commit) = self.commits.get(at) else { continue };
            let mut text = String::from("BEGIN;");
            for statement in commit {
                write!(text, " {};", statement.text())?;
            }
            writeln!(f, "{text} COMMIT;")?;
        }
        Ok(())
    }
}
