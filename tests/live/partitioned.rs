//! Query partitioning: for every row a condition `p` is true, false or NULL, so the results of `Q
//! AND p`, `Q AND NOT p` and `Q AND p IS NULL` together equal that of `Q`, after every commit. The
//! test needs no second evaluation of `p`: four subscriptions that route by different keys must
//! agree.
//!
//! After "Finding bugs in database systems via query partitioning", M. Rigger and Z. Su, 2020.

use std::sync::Arc;

use abide_live::{BindingId, Planner, Router};
use abide_schema::share::ShareKey;

use crate::client::{Client, exact};
use crate::deltas::{SHARE, params};
use crate::generated::{condition, join};
use crate::seed_budget::each_seed;
use crate::world::{Random, World};

/// One of the four queries.
struct PartitionClient {
    id: BindingId,
    client: Client,
}

#[test]
fn the_parts_of_a_condition_add_up() {
    each_seed("partitioned queries", SHARE, |seed| {
        let mut random = Random::new(seed ^ 0x0007_1b5e);
        let mut world = World::new(seed);
        let planner = Planner::new(Arc::clone(&world.catalog));
        let mut router = Router::new(Arc::clone(&world.catalog));
        (0..6).for_each(|_| drop(world.commit()));
        let queries: Vec<(String, [PartitionClient; 4])> = (0..12)
            .filter_map(|_| divide(&mut random, &mut world, &planner, &mut router))
            .collect();
        assert!(queries.len() > 3, "seed {seed}: most are refused");
        follow(seed, &mut world, &mut router, queries);
    });
}

/// A query and its three parts; `None` if one of them cannot be live, or fails on the data.
fn divide(
    random: &mut Random,
    world: &mut World,
    planner: &Planner,
    router: &mut Router,
) -> Option<(String, [PartitionClient; 4])> {
    let (sources, from) = join(random);
    let filter = condition(random, &sources);
    let p = condition(random, &sources);
    let keys: Vec<String> = sources.iter().flat_map(|source| source.keys()).collect();
    let whole = format!("SELECT {} FROM {from} WHERE ({filter})", keys.join(", "));
    let parts = ["", " AND ({p})", " AND NOT ({p})", " AND ({p}) IS NULL"];
    let params = params(&format!("{whole} {p}"), random);
    let mut bound = Vec::new();
    for part in parts {
        let sql = format!("{whole}{}", part.replace("{p}", &p));
        let own = params
            .iter()
            .filter(|(name, _)| sql.contains(&format!(":{name}")))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let binding = planner.bind(&sql, &own).ok()?;
        let rows = world.query(binding.snapshot_sql(), binding.params()).ok()?;
        let client = Client::new(&binding, rows);
        bound.push((binding, client));
    }
    let parts: Vec<PartitionClient> = bound
        .into_iter()
        .map(|(binding, client)| {
            let id =
                router.attach(&binding, &ShareKey::Operator).expect("the router has a free slot");
            PartitionClient { id, client }
        })
        .collect();
    Some((format!("{whole}, divided by {p}, {params:?}"), parts.try_into().ok()?))
}

fn follow(
    seed: u64,
    world: &mut World,
    router: &mut Router,
    mut all: Vec<(String, [PartitionClient; 4])>,
) {
    for commit in 0..12 {
        let changes = world.commit();
        let deltas = router.commit(&changes, &mut world.db);
        // If one part fails on a row that another does not evaluate, the parts do not add up.
        all.retain(|(_, parts)| {
            parts
                .iter()
                .all(|part| !deltas.iter().any(|(id, output)| *id == part.id && output.is_err()))
        });
        for (what, parts) in &mut all {
            for part in parts.iter_mut() {
                let own = deltas.iter().find(|(id, _)| *id == part.id);
                let Some((_, Ok(delta))) = own else { continue };
                let applied = part.client.apply(delta);
                applied.unwrap_or_else(|why| panic!("seed {seed}, commit {commit}: {why}: {what}"));
            }
            let [whole, rest @ ..] = &*parts;
            let sorted = |parts: &[PartitionClient]| {
                let rows = parts.iter().flat_map(|part| part.client.visible());
                let mut texts: Vec<String> = rows.map(|row| exact(&row)).collect();
                texts.sort();
                texts
            };
            let sum = sorted(rest);
            assert_eq!(
                sorted(std::slice::from_ref(whole)),
                sum,
                "seed {seed}, commit {commit}: {what}"
            );
        }
    }
}
