//! Intervals of cells, and which of them a cell lies in: a treap that knows the greatest end below each
//! node (Cormen et al., Introduction to Algorithms, section 14.3; priorities by hash).

use std::cmp::Ordering;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;

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
    Text(Box<[u8]>),
    /// A blob.
    Blob(Box<[u8]>),
}

impl Point {
    /// The point of a canonical value; NULL lies nowhere.
    pub(crate) fn of(value: Value) -> Option<Point> {
        match value {
            Value::Null => None,
            Value::Integer(n) => Some(Point::Integer(n)),
            Value::Real(x) => Some(Point::Real(x)),
            Value::Text(text) => Some(Point::Text(text.into_bytes().into())),
            Value::Blob(bytes) => Some(Point::Blob(bytes.into())),
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

/// All intervals of one column. In order of where they begin, then of where they end.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    nodes: Vec<Node>,
    rests: Vec<Rest>,
    free: Vec<At>,
    root: Option<At>,
    /// Priorities that nobody who subscribes can foresee: with chosen ones a tree would be a list.
    priorities: RandomState,
}

/// What a search looks at on its way down: a line of the processor's cache. Of a million nodes most
/// are in no cache, and each one that is met costs a wait.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    low: Low,
    /// The greatest end of this and all below.
    end: High,
    left: Option<At>,
    right: Option<At>,
}

/// What is looked at where the way ends.
#[derive(Debug)]
struct Rest {
    high: High,
    id: BindingId,
}

/// The place of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct At(NonZeroU32);

impl At {
    fn new(index: usize) -> At {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        At(number.expect("fewer intervals than a u32 counts"))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What holds a node.
#[derive(Clone, Copy)]
enum Under {
    Root,
    Left(At),
    Right(At),
}

/// An interval of a binding, by which nodes are ordered.
type Key<'a> = (&'a Interval, BindingId);

impl Intervals {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Adds an interval.
    pub(crate) fn insert(&mut self, interval: &Interval, id: BindingId) {
        let Interval { low, high } = interval.clone();
        let node = Node { low, end: high.clone(), left: None, right: None };
        let rest = Rest { high, id };
        let at = match self.free.pop() {
            Some(at) => {
                (self.nodes[at.index()], self.rests[at.index()]) = (node, rest);
                at
            }
            None => {
                self.nodes.push(node);
                self.rests.push(rest);
                At::new(self.nodes.len() - 1)
            }
        };
        let key = (interval, id);
        let (under, below) = self.make_room(key, self.priority(at));
        let (before, after) = self.split(below, key);
        let node = self.node_mut(at);
        (node.left, node.right) = (before, after);
        self.settle(at);
        match under {
            Under::Root => self.root = Some(at),
            Under::Left(above) => self.node_mut(above).left = Some(at),
            Under::Right(above) => self.node_mut(above).right = Some(at),
        }
    }

    /// Where a node of this priority belongs, and what is there now; the ends of those above are made
    /// to reach it. Only what is there now need be split, which is little: on the way down a node is
    /// looked at, and not its children.
    fn make_room(&mut self, key: Key<'_>, priority: u64) -> (Under, Option<At>) {
        let (mut under, mut next) = (Under::Root, self.root);
        while let Some(at) = next.filter(|at| self.priority(*at) >= priority) {
            let before = self.compare(key, at).is_lt();
            let node = self.node_mut(at);
            if node.end < key.0.high {
                node.end = key.0.high.clone();
            }
            (under, next) =
                if before { (Under::Left(at), node.left) } else { (Under::Right(at), node.right) };
        }
        (under, next)
    }

    /// Removes an interval.
    pub(crate) fn remove(&mut self, interval: &Interval, id: BindingId) {
        self.root = self.without(self.root, (interval, id));
    }

    /// Shows the bindings of all intervals that a point lies in.
    pub(crate) fn find(&self, point: &Point, each: &mut dyn FnMut(BindingId)) {
        self.find_below(self.root, point, each);
    }

    fn find_below(&self, at: Option<At>, point: &Point, each: &mut dyn FnMut(BindingId)) {
        let Some(at) = at else { return };
        let node = self.node(at);
        let reaches = |end: &High| match end {
            High::At(end) => end >= point,
            High::Endless => true,
        };
        if !reaches(&node.end) {
            return;
        }
        self.find_below(node.left, point, each);
        if node.low.as_ref().is_none_or(|low| low <= point) {
            let rest = &self.rests[at.index()];
            if reaches(&rest.high) {
                each(rest.id);
            }
            self.find_below(node.right, point, each);
        }
    }

    /// Those before a key, and the rest.
    fn split(&mut self, at: Option<At>, key: Key<'_>) -> (Option<At>, Option<At>) {
        let Some(at) = at else { return (None, None) };
        if self.compare(key, at).is_gt() {
            let (before, after) = self.split(self.node(at).right, key);
            self.node_mut(at).right = before;
            self.settle(at);
            (Some(at), after)
        } else {
            let (before, after) = self.split(self.node(at).left, key);
            self.node_mut(at).left = after;
            self.settle(at);
            (before, Some(at))
        }
    }

    /// Two treaps as one, all of the first before all of the second.
    fn merge(&mut self, left: Option<At>, right: Option<At>) -> Option<At> {
        let (Some(first), Some(second)) = (left, right) else { return left.or(right) };
        if self.priority(first) >= self.priority(second) {
            self.node_mut(first).right = self.merge(self.node(first).right, right);
            self.settle(first);
            left
        } else {
            self.node_mut(second).left = self.merge(left, self.node(second).left);
            self.settle(second);
            right
        }
    }

    fn without(&mut self, at: Option<At>, key: Key<'_>) -> Option<At> {
        let at = at?;
        match self.compare(key, at) {
            Ordering::Less => self.node_mut(at).left = self.without(self.node(at).left, key),
            Ordering::Greater => self.node_mut(at).right = self.without(self.node(at).right, key),
            Ordering::Equal => {
                self.free.push(at);
                return self.merge(self.node(at).left, self.node(at).right);
            }
        }
        // One that ended earlier was not what this end is from.
        if self.node(at).end == key.0.high {
            self.settle(at);
        }
        Some(at)
    }

    fn settle(&mut self, at: At) {
        let below = [self.node(at).left, self.node(at).right].into_iter().flatten();
        let ends = below.map(|below| &self.node(below).end);
        let end = ends.chain([&self.rests[at.index()].high]).max().cloned();
        self.node_mut(at).end = end.expect("a node has its own end");
    }

    /// A key beside that of a node; mostly where they begin tells.
    fn compare(&self, (interval, id): Key<'_>, at: At) -> Ordering {
        interval.low.cmp(&self.node(at).low).then_with(|| {
            let rest = &self.rests[at.index()];
            (&interval.high, id).cmp(&(&rest.high, rest.id))
        })
    }

    fn priority(&self, at: At) -> u64 {
        self.priorities.hash_one(at)
    }

    fn node(&self, at: At) -> &Node {
        &self.nodes[at.index()]
    }

    fn node_mut(&mut self, at: At) -> &mut Node {
        &mut self.nodes[at.index()]
    }
}

#[cfg(test)]
mod tests;
