//! Intervals of cells, and which of them a cell lies in: a treap that knows the greatest end below each
//! node (Cormen et al., Introduction to Algorithms, section 14.3; priorities by hash).

use std::cmp::Ordering;

use abide_schema::Value;

use crate::router::BindingId;

/// A cell as a point on SQLite's line of values: numbers, then texts, then blobs.
#[derive(Clone, Debug)]
pub(crate) enum Point {
    /// An integer, or a double that is whole.
    Integer(i64),
    /// Any other double.
    Real(f64),
    /// The bytes of a text.
    Text(Vec<u8>),
    /// A blob.
    Blob(Vec<u8>),
}

impl Point {
    /// The point of a canonical value; NULL lies nowhere.
    pub(crate) fn of(value: Value) -> Option<Point> {
        match value {
            Value::Null => None,
            Value::Integer(n) => Some(Point::Integer(n)),
            Value::Real(x) => Some(Point::Real(x)),
            Value::Text(text) => Some(Point::Text(text.into_bytes())),
            Value::Blob(bytes) => Some(Point::Blob(bytes)),
        }
    }

    fn class(&self) -> u8 {
        match self {
            Point::Integer(_) | Point::Real(_) => 0,
            Point::Text(_) => 1,
            Point::Blob(_) => 2,
        }
    }
}

impl Ord for Point {
    fn cmp(&self, other: &Point) -> Ordering {
        match (self, other) {
            (Point::Integer(left), Point::Integer(right)) => left.cmp(right),
            (Point::Real(left), Point::Real(right)) => left.total_cmp(right),
            (Point::Integer(left), Point::Real(right)) => integer_and_real(*left, *right),
            (Point::Real(left), Point::Integer(right)) => integer_and_real(*right, *left).reverse(),
            (Point::Text(left), Point::Text(right)) | (Point::Blob(left), Point::Blob(right)) => {
                left.cmp(right)
            }
            _ => self.class().cmp(&other.class()),
        }
    }
}

impl PartialOrd for Point {
    fn partial_cmp(&self, other: &Point) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Point {
    fn eq(&self, other: &Point) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Point {}

fn integer_and_real(left: i64, right: f64) -> Ordering {
    if right >= 9.3e18 {
        return Ordering::Less;
    }
    if right <= -9.3e18 {
        return Ordering::Greater;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and in range of an i128")]
    let floor = right.floor() as i128;
    let whole = i128::from(left).cmp(&floor);
    if whole.is_eq() && right.fract() != 0.0 { Ordering::Less } else { whole }
}

/// Where an interval begins; nothing is before everything.
pub(crate) type Low = Option<Point>;

/// Where an interval ends, itself included.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum High {
    /// Here.
    At(Point),
    /// Nowhere.
    Endless,
}

/// An interval of a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    pub(crate) low: Low,
    pub(crate) high: High,
}

/// All intervals of one column.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    nodes: Vec<Node>,
    free: Vec<usize>,
    root: Option<usize>,
    seed: u64,
}

#[derive(Debug)]
struct Node {
    key: (Interval, BindingId),
    /// The greatest end of this and all below.
    end: High,
    priority: u64,
    left: Option<usize>,
    right: Option<usize>,
}

/// The place of a node.
#[derive(Clone, Copy)]
enum Under {
    Root,
    Left(usize),
    Right(usize),
}

impl Intervals {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Adds an interval.
    pub(crate) fn insert(&mut self, interval: Interval, id: BindingId) {
        // SplitMix64: only balance hangs on it.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut priority = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        priority = (priority ^ (priority >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let end = interval.high.clone();
        let key = (interval, id);
        let node = Node { key: key.clone(), end, priority, left: None, right: None };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        let (under, below) = self.make_room(&key, priority);
        let (before, after) = self.split(below, &key);
        self.nodes[at].left = before;
        self.nodes[at].right = after;
        self.settle(at);
        match under {
            Under::Root => self.root = Some(at),
            Under::Left(above) => self.nodes[above].left = Some(at),
            Under::Right(above) => self.nodes[above].right = Some(at),
        }
    }

    /// Where a node of this priority belongs, and what is there now; the ends of those above are made
    /// to reach it. Only what is there now need be split, which is little: on the way down a node is
    /// looked at, and not its children.
    fn make_room(&mut self, key: &(Interval, BindingId), priority: u64) -> (Under, Option<usize>) {
        let (mut under, mut next) = (Under::Root, self.root);
        while let Some(at) = next.filter(|at| self.nodes[*at].priority >= priority) {
            let node = &mut self.nodes[at];
            if node.end < key.0.high {
                node.end = key.0.high.clone();
            }
            (under, next) = if *key < node.key {
                (Under::Left(at), node.left)
            } else {
                (Under::Right(at), node.right)
            };
        }
        (under, next)
    }

    /// Removes an interval.
    pub(crate) fn remove(&mut self, interval: &Interval, id: BindingId) {
        self.root = self.without(self.root, &(interval.clone(), id));
    }

    /// Shows the bindings of all intervals that a point lies in.
    pub(crate) fn find(&self, point: &Point, each: &mut dyn FnMut(BindingId)) {
        self.find_below(self.root, point, each);
    }

    fn find_below(&self, at: Option<usize>, point: &Point, each: &mut dyn FnMut(BindingId)) {
        let Some(node) = at.map(|at| &self.nodes[at]) else { return };
        let reaches = |end: &High| match end {
            High::At(end) => end >= point,
            High::Endless => true,
        };
        if !reaches(&node.end) {
            return;
        }
        self.find_below(node.left, point, each);
        let (interval, id) = &node.key;
        if interval.low.as_ref().is_none_or(|low| low <= point) {
            if reaches(&interval.high) {
                each(*id);
            }
            self.find_below(node.right, point, each);
        }
    }

    /// Those before a key, and the rest.
    fn split(
        &mut self,
        at: Option<usize>,
        key: &(Interval, BindingId),
    ) -> (Option<usize>, Option<usize>) {
        let Some(at) = at else { return (None, None) };
        if self.nodes[at].key < *key {
            let (before, after) = self.split(self.nodes[at].right, key);
            self.nodes[at].right = before;
            self.settle(at);
            (Some(at), after)
        } else {
            let (before, after) = self.split(self.nodes[at].left, key);
            self.nodes[at].left = after;
            self.settle(at);
            (before, Some(at))
        }
    }

    /// Two treaps as one, all of the first before all of the second.
    fn merge(&mut self, left: Option<usize>, right: Option<usize>) -> Option<usize> {
        let (Some(first), Some(second)) = (left, right) else { return left.or(right) };
        if self.nodes[first].priority >= self.nodes[second].priority {
            self.nodes[first].right = self.merge(self.nodes[first].right, right);
            self.settle(first);
            left
        } else {
            self.nodes[second].left = self.merge(left, self.nodes[second].left);
            self.settle(second);
            right
        }
    }

    fn without(&mut self, at: Option<usize>, key: &(Interval, BindingId)) -> Option<usize> {
        let at = at?;
        match key.cmp(&self.nodes[at].key) {
            Ordering::Less => self.nodes[at].left = self.without(self.nodes[at].left, key),
            Ordering::Greater => self.nodes[at].right = self.without(self.nodes[at].right, key),
            Ordering::Equal => {
                self.free.push(at);
                return self.merge(self.nodes[at].left, self.nodes[at].right);
            }
        }
        // One that ended earlier was not what this end is from.
        if self.nodes[at].end == key.0.high {
            self.settle(at);
        }
        Some(at)
    }

    fn settle(&mut self, at: usize) {
        let below = [self.nodes[at].left, self.nodes[at].right].into_iter().flatten();
        let ends = below.map(|below| &self.nodes[below].end);
        let end = ends.chain([&self.nodes[at].key.0.high]).max().cloned();
        self.nodes[at].end = end.expect("a node has its own end");
    }
}

#[cfg(test)]
mod tests;
