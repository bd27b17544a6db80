//! One file of a [`Machine`](super::Machine): its durable content, and the later operations.

use crate::random::Random;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// An operation that is not durable yet.
#[derive(Debug)]
pub(super) enum Op {
    Write { offset: usize, data: Vec<u8> },
    Truncate { bytes: usize },
}

/// A file, independent of its current name.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// The number of failed syncs.
    pub(super) failures: u64,
    durable: Vec<u8>,
    pending: Vec<Op>,
}

impl Image {
    pub(super) fn with_content(durable: Vec<u8>) -> Image {
        Image { failures: 0, durable, pending: Vec::new() }
    }

    pub(super) fn add_pending(&mut self, op: Op) {
        self.pending.push(op);
    }

    /// Makes everything so far durable.
    pub(super) fn sync(&mut self) {
        for op in std::mem::take(&mut self.pending) {
            apply(&mut self.durable, &op);
        }
    }

    /// Makes some of the pending operations durable and drops the others.
    pub(super) fn lose_pending(&mut self, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        // Sometimes the disk keeps everything or nothing.
        let all = random.one_in(8);
        let none = random.one_in(8);
        for op in pending {
            if all {
                apply(&mut self.durable, &op);
            } else if !none {
                self.lose_part(&op, random);
            }
        }
    }

    fn lose_part(&mut self, op: &Op, random: &mut Random) {
        match (op, random.below(4)) {
            (_, 0 | 1) => apply(&mut self.durable, op),
            (Op::Write { offset, data }, 2) => {
                for (at, sector) in sectors(*offset, data) {
                    if random.one_in(2) {
                        apply(&mut self.durable, &Op::Write { offset: at, data: sector.to_vec() });
                    }
                }
            }
            _ => {}
        }
    }

    /// The durable content.
    pub(super) fn durable(&self) -> Vec<u8> {
        self.durable.clone()
    }

    /// The durable content.
    pub(super) fn into_durable(self) -> Vec<u8> {
        self.durable
    }
}

fn apply(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write { offset, data } => {
            let end = offset + data.len();
            if bytes.len() < end {
                // Faster than `resize` where this crate is not optimised.
                bytes.append(&mut vec![0; end - bytes.len()]);
            }
            bytes[*offset..end].copy_from_slice(data);
        }
        Op::Truncate { bytes: to } => bytes.resize(*to, 0),
    }
}

/// A write split at sector boundaries.
fn sectors(offset: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let first = (SECTOR - offset % SECTOR).min(data.len());
    let (head, rest) = data.split_at(first);
    let rest = rest
        .chunks(SECTOR)
        .enumerate()
        .map(move |(nth, sector)| (offset + first + nth * SECTOR, sector));
    std::iter::once((offset, head)).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: usize, data: &[u8]) -> Op {
        Op::Write { offset, data: data.to_vec() }
    }

    #[test]
    fn synced_data_survives_later_losses() {
        for seed in 0..50 {
            let mut image = Image::with_content(b"old".to_vec());
            image.add_pending(write(3, b"new"));
            image.sync();
            image.add_pending(write(0, b"xxxxxxxxx"));
            image.add_pending(Op::Truncate { bytes: 1 });
            let before = image.durable.clone();
            assert_eq!(before, b"oldnew");
            image.lose_pending(&mut Random::new(seed));
            image.sync();
            let kept = image.into_durable();
            let possible: [&[u8]; 4] = [b"oldnew", b"xxxxxxxxx", b"o", b"x"];
            assert!(possible.contains(&kept.as_slice()), "{kept:?}");
        }
    }

    #[test]
    fn later_writes_may_survive_earlier_ones_and_long_ones_tear() {
        let mut reordered = false;
        let mut torn = false;
        for seed in 0..200 {
            let mut image = Image::with_content(vec![0; 4096]);
            image.add_pending(write(0, &[1; 2048]));
            image.add_pending(write(2048, &[2; 512]));
            image.lose_pending(&mut Random::new(seed));
            let kept = image.into_durable();
            reordered |= kept[0] == 0 && kept[1024] == 0 && kept[2048] == 2;
            torn |= kept[0] != kept[512];
            assert!(kept[..512].iter().all(|byte| *byte == kept[0]), "a sector is not torn");
        }
        assert!(reordered && torn);
    }

    #[test]
    fn a_write_is_split_at_sector_boundaries() {
        let data = [7; 1200];
        let cut: Vec<_> = sectors(500, &data).map(|(at, part)| (at, part.len())).collect();
        assert_eq!(cut, [(500, 12), (512, 512), (1024, 512), (1536, 164)]);
    }
}
