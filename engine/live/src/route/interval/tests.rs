//! The tree compared with a plain list, over random inserts and removals.

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn point(&mut self) -> Point {
        let n = self.below(40);
        match self.below(4) {
            0 => Point::Real(n as f64 + 0.5),
            1 => Point::Text([b'a' + n as u8 % 20].into()),
            _ => Point::Integer(n as i64),
        }
    }

    fn interval(&mut self) -> Interval {
        let low = (self.below(10) > 0).then(|| self.point());
        let high = if self.below(10) > 0 { High::At(self.point()) } else { High::Endless };
        Interval { low, high }
    }
}

fn covers(interval: &Interval, point: &Point) -> bool {
    let ends_after = match &interval.high {
        High::At(high) => point <= high,
        High::Endless => true,
    };
    interval.low.as_ref().is_none_or(|low| low <= point) && ends_after
}

#[test]
fn finds_the_same_bindings_as_a_list() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let mut tree = Intervals::default();
        let mut list = Vec::<(Interval, BindingId)>::new();
        for id in 0..2_000 {
            // The tree first grows to many runs and later shrinks to nothing.
            if random.below(2_000) >= id || list.is_empty() {
                let interval = random.interval();
                let id = BindingId(id);
                tree.insert(&interval, id);
                list.push((interval, id));
            } else {
                let (interval, id) = list.swap_remove(random.below(list.len() as u64) as usize);
                tree.remove(&interval, id);
            }
            let mut points: Vec<Point> = (0..1 + random.below(4)).map(|_| random.point()).collect();
            points.sort_unstable();
            points.dedup();
            let mut found = Vec::new();
            tree.find(&points, &mut |id, part| found.push((id, part)));
            found.sort_unstable_by_key(|(id, _)| *id);
            let mut expected = Vec::new();
            for (interval, id) in &list {
                let first = points.iter().position(|point| covers(interval, point));
                let last = points.iter().rposition(|point| covers(interval, point));
                expected.extend(first.zip(last).map(|(first, last)| (*id, first..last + 1)));
            }
            expected.sort_unstable_by_key(|(id, _)| *id);
            assert_eq!(found, expected, "seed {seed}, after {id} steps, {points:?}");
        }
        for (interval, id) in list {
            tree.remove(&interval, id);
        }
        assert!(tree.is_empty(), "seed {seed}");
    }
}

#[test]
fn the_end_of_a_node_is_tight() {
    let mut random = Random(7);
    let mut tree = Intervals::default();
    let mut list = Vec::new();
    for id in 0..1_000 {
        let interval = random.interval();
        tree.insert(&interval, BindingId(id));
        list.push((interval, BindingId(id)));
    }
    while list.len() > 20 {
        let (interval, id) = list.swap_remove(random.below(list.len() as u64) as usize);
        tree.remove(&interval, id);
    }
    // A stale end only makes a search visit more nodes, so only a direct check finds it.
    fn end_below(tree: &Intervals, at: At) -> High {
        let node = tree.node(at);
        let below = [node.left, node.right].into_iter().flatten().map(|at| end_below(tree, at));
        let run = &tree.runs[at.index()];
        let own = run.entries.iter().map(|(interval, _)| &interval.high).max();
        assert_eq!(Some(&run.end), own, "of {run:?}");
        let end = below.chain([run.end.clone()]).max().expect("the run has an end");
        assert_eq!(node.end, end, "of {node:?}");
        end
    }
    end_below(&tree, tree.root.expect("the tree is not empty"));
}

#[test]
fn a_node_fits_a_cache_line() {
    assert_eq!(size_of::<Node>(), 64);
}
