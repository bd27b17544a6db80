//! Which callers hold an entry of the router, and which of them it is counted for.

use std::collections::BTreeMap;

use abide_schema::share::ShareKey;

/// The holders of an entry. It is counted for one of them, the payer: at first for the one that
/// created it. A further holder costs nothing, so equal queries of several tenants use the share of
/// one.
#[derive(Debug)]
pub(crate) struct Holders {
    payer: ShareKey,
    /// How often the payer holds it.
    count: usize,
    others: BTreeMap<ShareKey, usize>,
}

/// What the release of an entry changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// It has the same payer.
    Kept,
    /// It has another payer.
    PaidByOther,
    /// It has no holder.
    Unused,
}

impl Holders {
    /// Of an entry that this caller creates.
    pub(crate) fn new(payer: ShareKey) -> Holders {
        Holders { payer, count: 1, others: BTreeMap::new() }
    }

    /// Returns the caller that the entry is counted for.
    pub(crate) fn payer(&self) -> &ShareKey {
        &self.payer
    }

    pub(crate) fn add(&mut self, key: &ShareKey) {
        if *key == self.payer {
            self.count += 1;
        } else if let Some(count) = self.others.get_mut(key) {
            *count += 1;
        } else {
            self.others.insert(key.clone(), 1);
        }
    }

    pub(crate) fn release(&mut self, key: &ShareKey) -> Released {
        if *key != self.payer {
            if let Some(count) = self.others.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.others.remove(key);
                }
            }
            return Released::Kept;
        }
        self.count -= 1;
        if self.count > 0 {
            return Released::Kept;
        }
        match self.others.pop_first() {
            Some((payer, count)) => {
                self.payer = payer;
                self.count = count;
                Released::PaidByOther
            }
            None => Released::Unused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_counted_for_one_of_its_holders() {
        let [ann, bob] = ["ann", "bob"].map(|id| ShareKey::Caller(id.into()));
        let mut holders = Holders::new(ann.clone());
        holders.add(&bob);
        holders.add(&bob);
        holders.add(&ann);
        assert_eq!((holders.release(&ann), holders.payer()), (Released::Kept, &ann));
        assert_eq!((holders.release(&ann), holders.payer()), (Released::PaidByOther, &bob));
        assert_eq!((holders.release(&bob), holders.payer()), (Released::Kept, &bob));
        assert_eq!(holders.release(&bob), Released::Unused);
    }
}
