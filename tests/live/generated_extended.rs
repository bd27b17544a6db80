//! Random queries of forms that [`crate::generated`] lacks: window functions, compounds, ordered
//! aggregates, RIGHT and FULL JOIN with USING, subqueries in FROM that group or use LIMIT.

use crate::deltas::{SHARE, queries_of, run};
use crate::seed_budget::each_seed;
use crate::world::Random;

const TABLES: [&str; 3] = ["r", "s", "p"];
const KEYS: [&[&str]; 3] = [&["id"], &["k"], &["g", "n"]];
const NUMBERS: [&[&str]; 3] = [&["id", "a", "b"], &["b", "n"], &["n", "r_id"]];
const TEXTS: [&[&str]; 3] = [&["c"], &["k", "c"], &["g"]];
const REALS: [&[&str]; 3] = [&["x"], &[], &["v"]];

/// An item of FROM: its name and its columns.
#[derive(Clone)]
struct Item {
    alias: String,
    numbers: Vec<String>,
    texts: Vec<String>,
    reals: Vec<String>,
    keys: Vec<String>,
}

impl Item {
    fn table(table: usize, alias: &str) -> Item {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Item {
            alias: alias.to_owned(),
            numbers: all(NUMBERS[table]),
            texts: all(TEXTS[table]),
            reals: all(REALS[table]),
            keys: all(KEYS[table]),
        }
    }

    fn number(&self, random: &mut Random) -> String {
        format!("{}.{}", self.alias, random.pick(&self.numbers))
    }

    fn text(&self, random: &mut Random) -> String {
        match self.texts.as_slice() {
            [] => format!("CAST({} AS TEXT)", self.number(random)),
            texts => format!("{}.{}", self.alias, random.pick(texts)),
        }
    }

    fn any(&self, random: &mut Random) -> String {
        let all: Vec<&String> = self.numbers.iter().chain(&self.texts).chain(&self.reals).collect();
        format!("{}.{}", self.alias, random.pick(&all))
    }

    fn keys(&self) -> Vec<String> {
        self.keys.iter().map(|key| format!("{}.{key}", self.alias)).collect()
    }
}

/// A FROM and its items.
struct From {
    text: String,
    items: Vec<Item>,
}

impl From {
    fn keys(&self) -> String {
        let keys: Vec<String> = self.items.iter().flat_map(Item::keys).collect();
        keys.join(", ")
    }
}

fn condition(random: &mut Random, items: &[Item]) -> String {
    let item = random.pick(items);
    let other = random.pick(items);
    let number = item.number(random);
    let text = item.text(random);
    match random.below(8) {
        0 => format!("{number} = :v"),
        1 => format!("{text} = :w"),
        2 => format!("{number} > :v"),
        3 => format!("{number} IN (1, 2, :v)"),
        4 => format!("{number} IS NOT {}", other.number(random)),
        5 => format!("{number} IN (SELECT b FROM s WHERE n >= :n)"),
        6 => format!("NOT EXISTS (SELECT 1 FROM p AS e WHERE e.r_id = {number})"),
        _ => format!("({number} < 3 OR {text} LIKE :w)"),
    }
}

fn filter(random: &mut Random, items: &[Item]) -> String {
    let count = random.below(3);
    let all: Vec<String> = (0..count).map(|_| condition(random, items)).collect();
    if all.is_empty() { String::new() } else { format!(" WHERE {}", all.join(" AND ")) }
}

/// A subquery in FROM.
fn derived(random: &mut Random, alias: &str) -> (String, Item) {
    let table = random.below(3);
    let inner = Item::table(table, "i");
    let name = TABLES[table];
    let rest = filter(random, std::slice::from_ref(&inner));
    let number = inner.number(random);
    let text = inner.text(random);
    let names = |numbers: &[&str], texts: &[&str], keys: &[&str]| {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let alias = alias.to_owned();
        let reals = Vec::new();
        Item { alias, numbers: all(numbers), texts: all(texts), reals, keys: all(keys) }
    };
    match random.below(7) {
        0 => (
            format!("SELECT {number} AS x, count(*) AS y FROM {name} i{rest} GROUP BY {number}"),
            names(&["x", "y"], &[], &["x"]),
        ),
        1 => (
            format!(
                "SELECT {number} AS x, {text} AS z, sum(length({text})) AS y FROM {name} i{rest} \
                 GROUP BY {number}, {text}"
            ),
            names(&["x", "y"], &["z"], &["x", "z"]),
        ),
        2 => (
            format!("SELECT DISTINCT {number} AS x, {text} AS z FROM {name} i{rest}"),
            names(&["x"], &["z"], &["x", "z"]),
        ),
        3 => {
            let order = inner.any(random);
            let select = format!(
                "SELECT *, row_number() OVER (PARTITION BY {number} ORDER BY {order}) AS y FROM \
                 {name} i{rest}"
            );
            let mut item = Item::table(table, alias);
            item.numbers.push("y".to_owned());
            (select, item)
        }
        4 => {
            let limit = 1 + random.below(4);
            let select =
                format!("SELECT * FROM {name} i{rest} ORDER BY {number} DESC LIMIT {limit}");
            (select, Item::table(table, alias))
        }
        5 => (
            format!("SELECT {number} AS x FROM {name} i{rest} UNION SELECT n FROM s"),
            names(&["x"], &[], &["x"]),
        ),
        _ => (
            format!("SELECT max({number}) AS x, count(*) AS y FROM {name} i{rest}"),
            names(&["x", "y"], &[], &[]),
        ),
    }
}

fn from(random: &mut Random) -> From {
    let count = *random.pick(&[1, 1, 2, 2, 2, 3]);
    let mut text = String::new();
    let mut items = Vec::new();
    for at in 0..count {
        let alias = format!("t{at}");
        let (name, item) = if random.below(3) == 0 {
            let (select, item) = derived(random, &alias);
            (format!("({select}) AS {alias}"), item)
        } else {
            let table = random.below(3);
            (format!("{} AS {alias}", TABLES[table]), Item::table(table, &alias))
        };
        if at == 0 {
            (text, items) = (name, vec![item]);
            continue;
        }
        let kind = *random.pick(&["JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let earlier = random.pick(&items).clone();
        let mut on = format!("{} = {}", earlier.number(random), item.number(random));
        items.push(item);
        if random.below(4) == 0 {
            on += &format!(" AND {}", condition(random, &items));
        }
        text += &format!(" {kind} {name} ON {on}");
    }
    From { text, items }
}

/// A window function over the rows of a FROM.
fn window(random: &mut Random, items: &[Item]) -> String {
    let one = random.pick(items);
    let two = random.pick(items);
    let three = random.pick(items);
    let keys: Vec<String> = items.iter().flat_map(Item::keys).collect();
    let partition = match random.below(4) {
        0 => String::new(),
        1 => format!("PARTITION BY {}, {}", one.number(random), two.text(random)),
        _ => format!("PARTITION BY {}", one.number(random)),
    };
    let value = three.any(random);
    let number = three.number(random);
    let order = match random.below(3) {
        0 => String::new(),
        1 => format!(" ORDER BY {} DESC NULLS LAST", two.any(random)),
        _ => format!(" ORDER BY {}", two.number(random)),
    };
    let total: Vec<String> = [two.any(random)].into_iter().chain(keys).collect();
    let total = format!(" ORDER BY {}", total.join(", "));
    let rows =
        format!("ROWS BETWEEN {} PRECEDING AND {} FOLLOWING", random.below(3), random.below(3));
    let groups = *random.pick(&[
        "",
        "RANGE UNBOUNDED PRECEDING EXCLUDE CURRENT ROW",
        "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
        "GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES",
        "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    ]);
    match random.below(11) {
        0 => format!("row_number() OVER ({partition}{order})"),
        1 => format!("rank() OVER ({partition}{order})"),
        2 => format!("dense_rank() OVER ({partition}{order})"),
        3 => format!("lag({value}, 1) OVER ({partition}{order})"),
        4 => format!("ntile(2) OVER ({partition}{order})"),
        5 => format!("count({value}) OVER ({partition}{order} {groups})"),
        6 => format!("max({number}) FILTER (WHERE {number} < 4) OVER ({partition}{order} {rows})"),
        7 => format!("first_value({value}) OVER ({partition}{order})"),
        8 => format!("last_value({value}) OVER ({partition}{total} {rows})"),
        9 => format!("group_concat({value}, '/') OVER ({partition}{order} {rows})"),
        _ => format!("sum({value}) OVER ({partition}{total})"),
    }
}

fn sequence(random: &mut Random, items: &[Item]) -> String {
    let value = random.pick(items).any(random);
    let order = random.pick(items).any(random);
    match random.below(5) {
        0 => format!("group_concat({value})"),
        1 => format!("string_agg({value}, '-' ORDER BY {order} DESC)"),
        2 => format!("json_group_array({order} ORDER BY {value}) FILTER (WHERE {value} > 1)"),
        3 => {
            let item = random.pick(items);
            format!("group_concat(DISTINCT {})", item.text(random))
        }
        _ => format!("json_group_object({value}, {order})"),
    }
}

/// One SELECT of a number and a text.
fn arm(random: &mut Random) -> String {
    let table = random.below(3);
    let item = Item::table(table, "u");
    let number = item.number(random);
    let text = item.text(random);
    let rest = filter(random, std::slice::from_ref(&item));
    let name = TABLES[table];
    match random.below(4) {
        0 => format!("SELECT {number}, 'x' FROM {name} u{rest}"),
        1 => format!("SELECT DISTINCT {number}, {text} FROM {name} u{rest}"),
        2 => format!("SELECT max({number}), {text} FROM {name} u{rest} GROUP BY {text}"),
        _ => format!("SELECT {number}, {text} FROM {name} u{rest}"),
    }
}

fn compound(random: &mut Random) -> String {
    let mut text = arm(random);
    for _ in 0..1 + random.below(3) {
        let operator = *random.pick(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]);
        text += &format!(" {operator} {}", arm(random));
    }
    match random.below(6) {
        0 => text + " ORDER BY 2 DESC, 1",
        1 => text + " ORDER BY 1 LIMIT 3",
        2 => format!(
            "WITH q(x, y) AS ({text}) SELECT r.id, q.x, q.y FROM r LEFT JOIN q ON q.x = r.a"
        ),
        3 => format!("WITH q(x, y) AS ({text}) SELECT x, y FROM q WHERE x = :v OR y = 'x'"),
        _ => text,
    }
}

fn query(random: &mut Random) -> String {
    if random.below(4) == 0 {
        return compound(random);
    }
    let from = from(random);
    let rest = format!("FROM {}{}", from.text, filter(random, &from.items));
    let items = &from.items;
    let item = random.pick(items).clone();
    let number = item.number(random);
    let text = item.text(random);
    let keys = from.keys();
    let keys = if keys.is_empty() { number.clone() } else { keys };
    match random.below(10) {
        0..=2 => format!("SELECT {keys}, {} AS w {rest}", window(random, items)),
        3 => {
            let one = window(random, items);
            let two = window(random, items);
            format!("SELECT {keys}, {one} AS w, {two} AS w2 {rest} ORDER BY {number}")
        }
        4 => format!("SELECT {number}, {} AS q {rest} GROUP BY {number}", sequence(random, items)),
        5 => format!("SELECT {number}, {text}, count(*) {rest} GROUP BY {number}, {text}"),
        6 => format!(
            "SELECT {number}, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS place {rest} \
             GROUP BY {number}"
        ),
        7 => format!("SELECT {keys}, {text} {rest} ORDER BY {number} LIMIT 3"),
        8 => format!("SELECT DISTINCT {number}, {text} {rest}"),
        _ => format!("SELECT {keys}, {text} {rest}"),
    }
}

/// Whether the query is refused because the order of its rows is not total. Such queries are
/// skipped.
fn is_refused(sql: &str) -> bool {
    crate::deltas::refused(sql).is_some_and(|refusal| {
        let known = [
            "without a unique key",
            "have no unique key",
            "can be peers",
            "more than one possible type",
            "equal but not identical",
            "make of different types",
        ];
        assert!(known.iter().any(|what| refusal.contains(what)), "{sql}: {refusal}");
        true
    })
}

#[test]
fn richer_random_queries_follow_every_commit() {
    each_seed("richer random queries", SHARE, |seed| {
        let mut random = Random::new(seed ^ 0xbeef);
        let queries: Vec<String> = (0..queries_of(seed)).map(|_| query(&mut random)).collect();
        let queries: Vec<&str> =
            queries.iter().map(String::as_str).filter(|sql| !is_refused(sql)).collect();
        run(seed, 12, &queries);
    });
}
