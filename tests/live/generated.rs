//! Random queries of joins, conditions, subqueries, groups, orders and limits, for cases that the
//! lists of [`crate::deltas`] miss.

use crate::deltas::{SHARE, queries_of, run};
use crate::seed_budget::each_seed;
use crate::world::Random;

/// A table in FROM, by alias.
pub(crate) struct Source {
    alias: String,
    table: usize,
}

const TABLES: [&str; 3] = ["r", "s", "p"];
const KEYS: [&[&str]; 3] = [&["id"], &["k"], &["g", "n"]];
const NUMBERS: [&[&str]; 3] = [&["id", "a", "b"], &["b", "n"], &["n", "r_id"]];
const TEXTS: [&[&str]; 3] = [&["c"], &["k", "c"], &["g"]];

impl Source {
    fn number(&self, random: &mut Random) -> String {
        format!("{}.{}", self.alias, random.pick(NUMBERS[self.table]))
    }

    fn text(&self, random: &mut Random) -> String {
        format!("{}.{}", self.alias, random.pick(TEXTS[self.table]))
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        KEYS[self.table].iter().map(|key| format!("{}.{key}", self.alias)).collect()
    }
}

pub(crate) fn condition(random: &mut Random, sources: &[Source]) -> String {
    let source = random.pick(sources);
    let other = random.pick(sources);
    let number = source.number(random);
    let text = source.text(random);
    match random.below(13) {
        0 => format!("{number} = :v"),
        1 => format!("{text} = :w"),
        2 => format!("{number} IN (1, 2, :v)"),
        3 => format!("{number} > :v"),
        4 => format!("{number} BETWEEN 0 AND :v"),
        5 => format!("{text} LIKE :w"),
        6 => format!("{number} IS :v"),
        7 => format!("{number} = {}", other.number(random)),
        8 => format!("({number} = :v OR {text} = :w)"),
        9 => format!("NOT {number} = 2"),
        10 => format!("{number} IS NOT NULL"),
        11 => format!("coalesce({number}, 0) + 1 > {}", other.number(random)),
        _ => subquery(random, &number, &text),
    }
}

fn subquery(random: &mut Random, number: &str, text: &str) -> String {
    let inner = Source { alias: format!("i{}", random.below(1_000)), table: random.below(3) };
    let from = format!("FROM {} AS {}", TABLES[inner.table], inner.alias);
    let column = inner.number(random);
    let inner_text = inner.text(random);
    match random.below(6) {
        0 => format!("{number} IN (SELECT {column} {from} WHERE {inner_text} = :w)"),
        1 => format!("{number} NOT IN (SELECT {column} {from} WHERE {column} > 0)"),
        2 => format!("EXISTS (SELECT 1 {from} WHERE {column} = {number})"),
        3 => format!(
            "NOT EXISTS (SELECT 1 {from} WHERE {column} = {number} AND {inner_text} = {text})"
        ),
        4 => format!("(SELECT count(*) {from} WHERE {column} = {number}) > 1"),
        _ => format!("{number} = (SELECT max({column}) {from} WHERE {inner_text} >= {text})"),
    }
}

/// A FROM of one to three joined tables.
pub(crate) fn join(random: &mut Random) -> (Vec<Source>, String) {
    let count = *random.pick(&[1, 1, 2, 2, 3]);
    let mut sources: Vec<Source> = Vec::new();
    let mut from = String::new();
    for at in 0..count {
        let table = random.below(3);
        sources.push(Source { alias: format!("t{at}"), table });
        let item = format!("{} AS t{at}", TABLES[table]);
        if at == 0 {
            from = item;
            continue;
        }
        let left = sources[random.below(at)].number(random);
        let right = sources[at].number(random);
        let kind = *random.pick(&["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "FULL JOIN"]);
        let extra = if random.below(4) == 0 {
            format!(" AND {}", condition(random, &sources))
        } else {
            String::new()
        };
        from += &format!(" {kind} {item} ON {left} = {right}{extra}");
    }
    (sources, from)
}

fn query(random: &mut Random) -> String {
    let (sources, from) = join(random);
    let conditions: Vec<String> =
        (0..random.below(3)).map(|_| condition(random, &sources)).collect();
    let filter = if conditions.is_empty() {
        String::new()
    } else {
        format!(" WHERE {}", conditions.join(" AND "))
    };
    let one = random.below(sources.len());
    let number = sources[one].number(random);
    let text = sources[one].text(random);
    let keys: Vec<String> = sources.iter().flat_map(Source::keys).collect();
    let keys = keys.join(", ");
    let rest = format!("FROM {from}{filter}");
    let groups = format!("{number}, count(*), sum({number}), min({text})");
    match random.below(9) {
        0 => format!("SELECT {groups} {rest} GROUP BY {number}"),
        1 => {
            let having = "HAVING count(*) > 1";
            format!("SELECT {text}, max({number}) {rest} GROUP BY {text}, {number} {having}")
        }
        2 => format!("SELECT {keys}, count(*) AS n {rest} GROUP BY {keys} ORDER BY n DESC"),
        3 => format!("SELECT count(*), total({number}) {rest}"),
        4 => format!("SELECT DISTINCT {number}, {text} {rest}"),
        5 => {
            let offset = random.below(2);
            format!("SELECT {keys}, {text} {rest} ORDER BY {number} DESC LIMIT 3 OFFSET {offset}")
        }
        6 => format!("SELECT {number} {rest} UNION ALL SELECT n FROM s WHERE b = :v"),
        7 => format!("SELECT {keys}, {} AS q {rest}", subquery(random, &number, &text)),
        _ => format!("SELECT {keys}, {text} {rest} ORDER BY {number}, {text} COLLATE NOCASE"),
    }
}

#[test]
fn random_queries_follow_every_commit() {
    each_seed("random queries", SHARE, |seed| {
        let mut random = Random::new(seed ^ 0xfeed);
        let queries: Vec<String> = (0..queries_of(seed)).map(|_| query(&mut random)).collect();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        run(seed, 12, &queries);
    });
}
