//! Intervals of cells, and the lookup of those that contain a cell: runs of neighbours in a treap
//! that stores the greatest end below each node (Cormen et al., Introduction to Algorithms, section
//! 14.3; priorities by hash).

use std::cmp::Ordering;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::ops::Range;

use abide_schema::Value;

use crate::route::binding_index::BindingId;

/// A cell as a point in SQLite's value order: numbers, then texts, then blobs.
#[derive(Clone, Debug)]
pub(crate) enum Point {
    /// An integer, or a double with an integral value.
    Integer(i64),
    /// Any other double.
    Real(f64),
    /// The bytes of a text.
    Text(Box<[u8]>),
    /// A blob.
    Blob(Box<[u8]>),
}

impl Point {
    /// Returns the point of a canonical value; `None` for NULL.
    pub(crate) fn from_value(value: Value) -> Option<Point> {
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
    #[expect(clippy::cast_possible_truncation, reason = "it is integral and in range of an i128")]
    let floor = right.floor() as i128;
    let whole = i128::from(left).cmp(&floor);
    if whole.is_eq() && right.fract() != 0.0 { Ordering::Less } else { whole }
}

/// The start of an interval; `None` for unbounded.
pub(crate) type Low = Option<Point>;

/// The end of an interval, inclusive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum High {
    /// At this point.
    At(Point),
    /// Unbounded.
    Endless,
}

/// An interval of a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    pub(crate) low: Low,
    pub(crate) high: High,
}

/// All intervals of one column, ordered by start, then by end.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    nodes: Vec<Node>,
    runs: Vec<Run>,
    free: Vec<At>,
    root: Option<At>,
    /// The hash key of the priorities. With a secret key a subscriber cannot choose intervals that
    /// degrade the tree to a list.
    priorities: RandomState,
}

/// The maximum number of intervals in a run. Of a million intervals most are not in the processor's
/// cache, and each visited node costs a cache miss; the nodes of the far fewer runs fit in the
/// cache.
const RUN: usize = 32;

/// The node of a run: one cache line with all that a search reads on its way down.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    /// The start of the run's first interval.
    low: Low,
    /// The greatest end of the run and of all nodes below.
    end: High,
    left: Option<At>,
    right: Option<At>,
}

/// Neighbours in order; never empty while the run has a node in the tree.
#[derive(Debug)]
struct Run {
    entries: Vec<Entry>,
    /// The greatest end in the run.
    end: High,
}

type Entry = (Interval, BindingId);

/// The ordering key of an entry, present or not.
type Key<'a> = (&'a Interval, BindingId);

fn key(entry: &Entry) -> Key<'_> {
    (&entry.0, entry.1)
}

/// The index of a node and its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct At(NonZeroU32);

impl At {
    fn new(index: usize) -> At {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        At(number.expect("fewer runs than a u32 counts"))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The parent link of a node.
#[derive(Clone, Copy)]
enum ParentLink {
    Root,
    Left(At),
    Right(At),
}

/// Searches the intervals that contain a point and begin after another one.
#[derive(Clone, Copy)]
struct Search<'a> {
    after: Option<&'a Point>,
    point: &'a Point,
}

impl Search<'_> {
    fn begins_after(&self, low: &Low) -> bool {
        self.after.is_none_or(|after| low.as_ref().is_some_and(|low| low > after))
    }

    fn begins(&self, low: &Low) -> bool {
        low.as_ref().is_none_or(|low| low <= self.point)
    }
}

impl High {
    fn reaches(&self, point: &Point) -> bool {
        match self {
            High::At(end) => end >= point,
            High::Endless => true,
        }
    }

    fn raise(&mut self, to: &High) {
        if *self < *to {
            self.clone_from(to);
        }
    }
}

impl Run {
    fn from_entries(entries: Vec<Entry>) -> Run {
        let end = entries.iter().map(|(interval, _)| &interval.high).max().cloned();
        Run { entries, end: end.expect("a run has entries") }
    }

    /// Returns the position of an entry, or where to insert it.
    fn search(&self, sought: Key<'_>) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| key(entry).cmp(&sought))
    }

    /// Adds an entry. If the run overflows, returns the later entries for a new run.
    fn insert(&mut self, entry: Entry) -> Option<Vec<Entry>> {
        let (Ok(place) | Err(place)) = self.search(key(&entry));
        self.end.raise(&entry.0.high);
        self.entries.insert(place, entry);
        if self.entries.len() <= RUN {
            return None;
        }
        // Inserts in ascending order leave full runs.
        let cut = if place == RUN { RUN } else { RUN / 2 };
        let later = self.entries.split_off(cut);
        *self = Run::from_entries(std::mem::take(&mut self.entries));
        Some(later)
    }

    /// Removes an entry; returns whether it was present.
    fn remove(&mut self, sought: Key<'_>) -> bool {
        let Ok(place) = self.search(sought) else { return false };
        let (gone, _) = self.entries.remove(place);
        if gone.high == self.end && !self.entries.is_empty() {
            *self = Run::from_entries(std::mem::take(&mut self.entries));
        }
        if self.entries.len() * 4 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        true
    }
}

impl Intervals {
    /// `true` if there are no intervals.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Adds an interval.
    pub(crate) fn insert(&mut self, interval: &Interval, id: BindingId) {
        let path = self.path_to((interval, id));
        let Some(at) = path.last().copied() else {
            return self.insert_node(vec![(interval.clone(), id)]);
        };
        for above in path {
            self.node_mut(above).end.raise(&interval.high);
        }
        let later = self.runs[at.index()].insert((interval.clone(), id));
        self.update_start(at);
        if let Some(later) = later {
            self.insert_node(later);
        }
    }

    /// Removes an interval.
    pub(crate) fn remove(&mut self, interval: &Interval, id: BindingId) {
        let mut path = self.path_to((interval, id));
        let Some(at) = path.last().copied() else { return };
        if !self.runs[at.index()].remove((interval, id)) {
            return;
        }
        if self.runs[at.index()].entries.is_empty() {
            path.pop();
            self.remove_node(at, path.last().copied());
        } else {
            self.update_start(at);
        }
        for above in path.into_iter().rev() {
            // If the interval did not determine this node's end, the ends above are unaffected too.
            if self.node(above).end != interval.high {
                break;
            }
            self.update_end(above);
        }
    }

    /// Calls `each` once with the binding of every interval that contains some of these points, and
    /// with which of them. The points are distinct and in ascending order.
    pub(crate) fn find(&self, points: &[Point], each: &mut dyn FnMut(BindingId, Range<usize>)) {
        for (at, point) in points.iter().enumerate() {
            // An interval is found by the first point that it contains.
            let search = Search { after: at.checked_sub(1).map(|before| &points[before]), point };
            self.find_below(self.root, search, &mut |interval, id| {
                let more = points[at..].partition_point(|point| interval.high.reaches(point));
                each(id, at..at + more);
            });
        }
    }

    fn find_below(
        &self,
        at: Option<At>,
        search: Search<'_>,
        each: &mut dyn FnMut(&Interval, BindingId),
    ) {
        let Some(at) = at else { return };
        let node = self.node(at);
        if !node.end.reaches(search.point) {
            return;
        }
        // Whatever is to the left begins at the start of this run or before.
        if search.begins_after(&node.low) {
            self.find_below(node.left, search, each);
        }
        if !search.begins(&node.low) {
            return;
        }
        let run = &self.runs[at.index()];
        if run.end.reaches(search.point) {
            let known =
                run.entries.partition_point(|(interval, _)| !search.begins_after(&interval.low));
            let entries = run.entries[known..].iter();
            entries
                .take_while(|(interval, _)| search.begins(&interval.low))
                .filter(|(interval, _)| interval.high.reaches(search.point))
                .for_each(|(interval, id)| each(interval, *id));
        }
        self.find_below(node.right, search, each);
    }

    /// Returns the path from the root to the run that an entry belongs to: the last run that does
    /// not start after it, or the first run.
    fn path_to(&self, sought: Key<'_>) -> Vec<At> {
        let mut path = Vec::with_capacity(32);
        let mut next = self.root;
        let mut length = None;
        while let Some(at) = next {
            path.push(at);
            if self.compare(sought, at).is_lt() {
                next = self.node(at).left;
            } else {
                length = Some(path.len());
                next = self.node(at).right;
            }
        }
        path.truncate(length.unwrap_or(path.len()));
        path
    }

    /// Inserts a node for a new run into the tree.
    fn insert_node(&mut self, entries: Vec<Entry>) {
        let run = Run::from_entries(entries);
        let low = run.entries[0].0.low.clone();
        let node = Node { low, end: run.end.clone(), left: None, right: None };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at.index()] = node;
                self.runs[at.index()] = run;
                at
            }
            None => {
                self.nodes.push(node);
                self.runs.push(run);
                At::new(self.nodes.len() - 1)
            }
        };
        let (under, below) = self.make_room(at);
        let (before, after) = self.split(below, at);
        let node = self.node_mut(at);
        node.left = before;
        node.right = after;
        self.update_end(at);
        match under {
            ParentLink::Root => self.root = Some(at),
            ParentLink::Left(above) => self.node_mut(above).left = Some(at),
            ParentLink::Right(above) => self.node_mut(above).right = Some(at),
        }
    }

    /// Finds where a node belongs by its priority, and the subtree there, and extends the ends of
    /// the nodes above. Only that small subtree needs a split.
    fn make_room(&mut self, new: At) -> (ParentLink, Option<At>) {
        let priority = self.priority(new);
        let end = self.node(new).end.clone();
        let mut under = ParentLink::Root;
        let mut next = self.root;
        while let Some(at) = next.filter(|at| self.priority(*at) >= priority) {
            let before = self.compare(self.first(new), at).is_lt();
            let node = self.node_mut(at);
            node.end.raise(&end);
            (under, next) = if before {
                (ParentLink::Left(at), node.left)
            } else {
                (ParentLink::Right(at), node.right)
            };
        }
        (under, next)
    }

    /// Returns the nodes before a new run, and the others.
    fn split(&mut self, at: Option<At>, new: At) -> (Option<At>, Option<At>) {
        let Some(at) = at else { return (None, None) };
        if self.compare(self.first(new), at).is_gt() {
            let (before, after) = self.split(self.node(at).right, new);
            self.node_mut(at).right = before;
            self.update_end(at);
            (Some(at), after)
        } else {
            let (before, after) = self.split(self.node(at).left, new);
            self.node_mut(at).left = after;
            self.update_end(at);
            (before, Some(at))
        }
    }

    /// Removes a node from below its parent.
    fn remove_node(&mut self, at: At, above: Option<At>) {
        let below = self.merge(self.node(at).left, self.node(at).right);
        let link = match above.map(|above| self.node_mut(above)) {
            None => &mut self.root,
            Some(above) if above.left == Some(at) => &mut above.left,
            Some(above) => &mut above.right,
        };
        *link = below;
        self.free.push(at);
    }

    /// Merges two treaps, the first entirely before the second.
    fn merge(&mut self, left: Option<At>, right: Option<At>) -> Option<At> {
        let (Some(first), Some(second)) = (left, right) else { return left.or(right) };
        if self.priority(first) >= self.priority(second) {
            self.node_mut(first).right = self.merge(self.node(first).right, right);
            self.update_end(first);
            left
        } else {
            self.node_mut(second).left = self.merge(left, self.node(second).left);
            self.update_end(second);
            right
        }
    }

    /// Updates the start of a run to that of its first entry.
    fn update_start(&mut self, at: At) {
        let node = &mut self.nodes[at.index()];
        let run = &self.runs[at.index()];
        let first = &run.entries[0].0;
        if node.low != first.low {
            node.low.clone_from(&first.low);
        }
    }

    fn update_end(&mut self, at: At) {
        let below = [self.node(at).left, self.node(at).right].into_iter().flatten();
        let ends = below.map(|below| &self.node(below).end);
        let end = ends.chain([&self.runs[at.index()].end]).max().cloned();
        self.node_mut(at).end = end.expect("a node has its own end");
    }

    /// Compares a key with the first entry of a run; the starts usually decide.
    fn compare(&self, sought: Key<'_>, at: At) -> Ordering {
        let begins = sought.0.low.cmp(&self.node(at).low);
        begins.then_with(|| sought.cmp(&self.first(at)))
    }

    fn first(&self, at: At) -> Key<'_> {
        key(&self.runs[at.index()].entries[0])
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
