//! Sets of bindings by the hash of their lookup key.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A binding that is attached to a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingId(pub(crate) u64);

/// A map with numeric keys that a client cannot choose: counters and keyed hashes. Keys that a
/// client chooses could be made to collide.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Spreads a number over 64 bits: multiplied by 2^64 over the golden ratio (Knuth, The Art of
/// Computer Programming, section 6.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers of 64 bits");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Bindings by a keyed hash.
#[derive(Debug, Default)]
pub(crate) struct BindingIndex(IdMap<u64, BindingIds>);

/// The bindings of one hash, usually one.
#[derive(Debug)]
enum BindingIds {
    One(BindingId),
    #[expect(
        clippy::box_collection,
        reason = "in place it would make every hash's entry thrice as large"
    )]
    Many(Box<HashSet<BindingId>>),
}

impl BindingIndex {
    /// `true` if there are no bindings.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `each` with the bindings of a hash.
    pub(crate) fn find(&self, hash: u64, each: &mut dyn FnMut(BindingId)) {
        if let Some(ids) = self.0.get(&hash) {
            ids.for_each(each);
        }
    }

    /// Calls `each` with all bindings.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(BindingId)) {
        self.0.values().for_each(|ids| ids.for_each(each));
    }

    /// Adds a binding, if not present.
    pub(crate) fn add(&mut self, hash: u64, id: BindingId) {
        match self.0.entry(hash) {
            Entry::Vacant(vacant) => {
                vacant.insert(BindingIds::One(id));
            }
            Entry::Occupied(mut ids) => ids.get_mut().add(id),
        }
    }

    /// Removes a binding.
    pub(crate) fn remove(&mut self, hash: u64, id: BindingId) {
        if let Entry::Occupied(mut ids) = self.0.entry(hash)
            && ids.get_mut().remove(id)
        {
            ids.remove();
        }
    }
}

impl BindingIds {
    fn for_each(&self, each: &mut dyn FnMut(BindingId)) {
        match self {
            BindingIds::One(id) => each(*id),
            BindingIds::Many(ids) => ids.iter().for_each(|id| each(*id)),
        }
    }

    fn add(&mut self, id: BindingId) {
        match self {
            BindingIds::One(first) if *first == id => {}
            BindingIds::One(first) => *self = BindingIds::Many(HashSet::from([*first, id]).into()),
            BindingIds::Many(ids) => {
                ids.insert(id);
            }
        }
    }

    /// Removes a binding; returns whether none is left.
    fn remove(&mut self, id: BindingId) -> bool {
        match self {
            BindingIds::One(only) => *only == id,
            BindingIds::Many(ids) => {
                ids.remove(&id);
                ids.is_empty()
            }
        }
    }
}
