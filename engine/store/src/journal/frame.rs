//! The layout of a segment: a header, and frames of one record each. All numbers are little-endian.
//!
//! ```text
//! segment = header, zeros up to 512, frame*, anything
//! header  = "abidejrn" version:u32 round:u64 log:16 base:i64 crc:u32
//! frame   = length:u32 crc:u32 round:u64 epoch:u64 durable:i64 from:i64 to:i64 before:32 after:32 record{length}
//! ```
//!
//! A segment is used again in a later *round*. Each frame repeats the round and is covered by its checksum, so what an
//! earlier round left behind ends the segment. `before` is the hash of event `from`, and `after` that of event `to`: a
//! record can only follow the log that it was written for, and cannot be taken for one of another history. `epoch`
//! counts the openings of the file for writing. `durable` is the last event that was synced when the frame was written: a
//! frame that is damaged later can be told from one that a crash has torn, because another frame says that it was
//! durable.

use abide_schema::Seq;
use abide_schema::event::Hash;
use abide_schema::seeded::{SeededBug, makes};

/// The offset of the first frame: a sector of its own for the header, so that a torn frame never damages it. A crash
/// leaves the former header, or the new one, and no mixture: a sector is written whole or not at all.
pub(crate) const FRAMES_START: usize = 512;

/// Bytes of a frame before its payload.
pub(crate) const FRAME_HEADER: usize = 4 + 4 + 8 + 8 + 8 + 8 + 8 + 32 + 32;

const MAGIC: &[u8; 8] = b"abidejrn";

/// The version of the layout. Version 1 was never released.
pub(crate) const VERSION: u32 = 2;

const HEADER: usize = 8 + 4 + 8 + 16 + 8 + 4;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The number of this use, over all segments.
    pub(crate) round: u64,
    /// Identifies the log.
    pub(crate) log: [u8; 16],
    /// Everything up to this event is durable in the database file.
    pub(crate) base: Seq,
}

/// The position of a record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPosition {
    /// The last event before the record.
    pub from: Seq,
    /// The last event of the record.
    pub to: Seq,
    /// The hash of the log before the record.
    pub before: Hash,
    /// The hash of the log after the record; `before` if it has no event.
    pub after: Hash,
}

/// A record that was found in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) epoch: u64,
    /// The last event that was durable when the record was written.
    pub(crate) durable: Seq,
    pub(crate) position: RecordPosition,
    /// See [`RecordContent`](super::record::RecordContent).
    pub(crate) content: &'a [u8],
}

/// Why the header of a segment is not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The segment was never used, its header did not reach the disk, or it is damaged: see [`last_without_header`].
    Unused,
    /// A program with another version of the layout wrote it.
    Version(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.round.to_le_bytes());
        bytes.extend_from_slice(&self.log);
        bytes.extend_from_slice(&self.base.0.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Returns the header of a segment.
    pub(crate) fn decode(segment: &[u8]) -> Result<SegmentHeader, NoHeader> {
        let header = SegmentHeader::take(segment).ok_or(NoHeader::Unused)?;
        match header {
            (VERSION, header) => Ok(header),
            (version, _) => Err(NoHeader::Version(version)),
        }
    }

    /// Takes the version of a segment's layout, and the fields that version 2 has.
    fn take(segment: &[u8]) -> Option<(u32, SegmentHeader)> {
        let (header, crc) = segment.get(..HEADER)?.split_last_chunk::<4>()?;
        let mut rest = header;
        if crc32fast::hash(header) != u32::from_le_bytes(*crc) || take::<8>(&mut rest)? != *MAGIC {
            return None;
        }
        let version = u32::from_le_bytes(take(&mut rest)?);
        let round = u64::from_le_bytes(take(&mut rest)?);
        let log = take(&mut rest)?;
        let base = Seq(i64::from_le_bytes(take(&mut rest)?));
        Some((version, SegmentHeader { round, log, base }))
    }
}

/// Completes the frame of a record, which begins with room for the header.
pub(crate) fn complete(
    round: u64,
    epoch: u64,
    durable: Seq,
    position: &RecordPosition,
    frame: &mut [u8],
) {
    let length = frame.len() - FRAME_HEADER;
    let length = u32::try_from(length).expect("a group is smaller than 4 GiB");
    let fields: [&[u8]; 9] = [
        &length.to_le_bytes(),
        &[0; 4],
        &round.to_le_bytes(),
        &epoch.to_le_bytes(),
        &durable.0.to_le_bytes(),
        &position.from.0.to_le_bytes(),
        &position.to.0.to_le_bytes(),
        &position.before,
        &position.after,
    ];
    let mut header = &mut frame[..FRAME_HEADER];
    for field in fields {
        let (place, rest) = header.split_at_mut(field.len());
        place.copy_from_slice(field);
        header = rest;
    }
    let crc = checksum(frame);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The checksum of a frame: over everything but itself.
fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// Takes the next record of a segment; `None` at the end, which may be a torn frame or one of an earlier round.
pub(crate) fn take_record<'a>(round: u64, segment: &mut &'a [u8]) -> Option<Record<'a>> {
    let length = u32::from_le_bytes(*segment.first_chunk()?);
    let bytes = FRAME_HEADER.checked_add(usize::try_from(length).ok()?)?;
    let (frame, rest) = segment.split_at_checked(bytes)?;
    let mut header = &frame[4..];
    let crc = u32::from_le_bytes(take(&mut header)?);
    let is_of_round = u64::from_le_bytes(take(&mut header)?) == round;
    if !(is_of_round || makes(SeededBug::StaleSegmentApplied)) {
        return None;
    }
    if checksum(frame) != crc && !makes(SeededBug::ChecksumIgnored) {
        return None;
    }
    let epoch = u64::from_le_bytes(take(&mut header)?);
    let durable = Seq(i64::from_le_bytes(take(&mut header)?));
    let from = Seq(i64::from_le_bytes(take(&mut header)?));
    let to = Seq(i64::from_le_bytes(take(&mut header)?));
    let before = take(&mut header)?;
    let after = take(&mut header)?;
    *segment = rest;
    let position = RecordPosition { from, to, before, after };
    Some(Record { epoch, durable, position, content: &frame[FRAME_HEADER..] })
}

/// Skips to the next record of a segment behind bytes that are none; `None` if there is none.
pub(crate) fn skip_to_record<'a>(round: u64, segment: &mut &'a [u8]) -> Option<Record<'a>> {
    // Behind the length and the checksum.
    const ROUND: usize = 8;
    let round_bytes = round.to_le_bytes();
    let content = *segment;
    memchr::memmem::find_iter(content.get(ROUND..)?, &round_bytes).find_map(|at| {
        let mut rest = &content[at..];
        let record = take_record(round, &mut rest)?;
        *segment = rest;
        Some(record)
    })
}

/// Returns the last event of the records in a segment without a valid header; 0 if a crash can have left it. The round
/// of the records is the one of the first frame or, if that is damaged, too, the one in the header.
///
/// The header is written before the first frame, and one sync makes both durable. So a crash before that sync can leave
/// frames behind a header of zeros, as the segment was created: then only the events were answered that a frame names
/// as durable. It leaves no other invalid header, because a segment that is used again has a valid one.
pub(crate) fn last_without_header(segment: &[u8]) -> Seq {
    const ROUND_OF_HEADER: usize = 8 + 4;
    const ROUND_OF_FIRST_FRAME: usize = FRAMES_START + 4 + 4;
    let header = segment.get(..FRAMES_START).unwrap_or(segment);
    let may_be_of_crash = header.iter().all(|byte| *byte == 0);
    let mut last = Seq::ZERO;
    for at in [ROUND_OF_FIRST_FRAME, ROUND_OF_HEADER] {
        let round = segment.get(at..).and_then(<[u8]>::first_chunk::<8>);
        // The first round is 1.
        let Some(round) = round.map(|bytes| u64::from_le_bytes(*bytes)).filter(|it| *it > 0) else {
            continue;
        };
        let mut frames = segment.get(FRAMES_START..).unwrap_or_default();
        while let Some(record) = skip_to_record(round, &mut frames) {
            last = last.max(if may_be_of_crash { record.durable } else { record.position.to });
        }
    }
    last
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITION: RecordPosition =
        RecordPosition { from: Seq(6), to: Seq(9), before: [5; 32], after: [6; 32] };

    #[test]
    fn a_header_round_trips_and_any_changed_byte_is_found() {
        let header = SegmentHeader { round: 7, log: [3; 16], base: Seq(41) };
        let bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(SegmentHeader::decode(&damaged), Err(NoHeader::Unused), "byte {at}");
        }
    }

    /// A header of another version was taken for a segment that was never used, and its records were lost.
    #[test]
    fn a_header_of_another_version_is_not_an_unused_segment() {
        let mut bytes = SegmentHeader { round: 7, log: [3; 16], base: Seq(41) }.encode();
        bytes[8] += 1;
        let end = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..end]).to_le_bytes();
        bytes[end..].copy_from_slice(&crc);
        assert_eq!(SegmentHeader::decode(&bytes), Err(NoHeader::Version(VERSION + 1)));
    }

    #[test]
    fn torn_and_older_frames_end_a_segment() {
        let mut bytes = vec![0; FRAME_HEADER];
        bytes.extend_from_slice(b"some operations");
        complete(2, 5, Seq(4), &POSITION, &mut bytes);
        let whole = |bytes: &[u8], round| take_record(round, &mut &*bytes).map(|it| it.position);
        assert_eq!(whole(&bytes, 2), Some(POSITION));
        assert_eq!(whole(&bytes, 3), None, "an older round");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(whole(&damaged, 2), None, "byte {at}");
            assert_eq!(whole(&bytes[..at], 2), None, "{at} bytes");
        }
        assert_eq!(whole(&[0; 600], 0), None, "zeros");
    }

    #[test]
    fn a_record_behind_a_damaged_one_is_found() {
        let mut segment = Vec::new();
        for durable in [4, 5, 6] {
            let mut frame = vec![0; FRAME_HEADER];
            frame.extend_from_slice(b"some operations");
            complete(2, 5, Seq(durable), &POSITION, &mut frame);
            segment.extend_from_slice(&frame);
        }
        let frame = segment.len() / 3;
        for at in frame..2 * frame {
            let mut damaged = segment.clone();
            damaged[at] ^= 1;
            let mut rest = &damaged[..];
            assert!(take_record(2, &mut rest).is_some_and(|record| record.durable == Seq(4)));
            assert_eq!(take_record(2, &mut rest), None, "byte {at}");
            let found = skip_to_record(2, &mut rest).map(|record| record.durable);
            assert_eq!((found, rest), (Some(Seq(6)), &[][..]), "byte {at}");
        }
    }

    #[test]
    fn records_without_a_header_are_found_unless_a_crash_can_have_left_them() {
        let header = SegmentHeader { round: 2, log: [3; 16], base: Seq(4) }.encode();
        let mut segment = header.clone();
        segment.resize(FRAMES_START, 0);
        let mut frame = vec![0; FRAME_HEADER];
        frame.extend_from_slice(b"some operations");
        // One of an earlier use is behind the others.
        let later = RecordPosition { to: Seq(99), ..POSITION };
        for (round, durable, position) in [(2, 4, POSITION), (2, 5, POSITION), (1, 98, later)] {
            complete(round, 5, Seq(durable), &position, &mut frame);
            segment.extend_from_slice(&frame);
        }
        for at in 0..header.len() {
            let mut damaged = segment.clone();
            damaged[at] ^= 0x10;
            assert_eq!(last_without_header(&damaged), Seq(9), "byte {at}");
            // The round of the first frame.
            damaged[FRAMES_START + 8] ^= 1;
            let expected = if (12..20).contains(&at) { Seq::ZERO } else { Seq(9) };
            assert_eq!(last_without_header(&damaged), expected, "byte {at} and the first frame");
        }
        segment[..FRAMES_START].fill(0);
        assert_eq!(last_without_header(&segment), Seq(5), "only what was durable");
        assert_eq!(last_without_header(&segment[..FRAMES_START]), Seq::ZERO);
        assert_eq!(last_without_header(b"x"), Seq::ZERO);
    }
}
