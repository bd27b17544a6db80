//! A checksum of a query's result, with which both ends of a subscription verify that they hold the
//! same rows.
//!
//! It is a sum over the rows as a multiset: it does not depend on their order, and inserting or deleting
//! a row adds or subtracts its term without access to the others.
//!
//! ```text
//! checksum = Σ mix(fnv(row))          modulo 2^64, over all rows, hidden columns included
//! fnv      = FNV-1a of 64 bits        offset basis cbf29ce484222325, prime 100000001b3
//! row      = cell*
//! cell     = 0x00                     NULL
//!          | 0x01 8 bytes             INTEGER, two's complement, little-endian
//!          | 0x02 8 bytes             REAL, the bits of the double, little-endian
//!          | 0x03 8 bytes, content    TEXT: the length in bytes, little-endian, and UTF-8
//!          | 0x04 8 bytes, content    BLOB, likewise
//! mix(h)   = h ^= h >> 33; h *= ff51afd7ed558ccd; h ^= h >> 33; h *= c4ceb9fe1a85ec53; h ^= h >> 33
//! ```
//!
//! The constants are those of FNV (<http://www.isthe.com/chongo/tech/comp/fnv/>) and of MurmurHash3's
//! final mixer, without which sums of similar rows would be similar. On the wire it is 16 hex digits. It
//! detects accidental errors; it does not protect against deliberate manipulation.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::value::Value;

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The checksum of a multiset of rows; 0 for no rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Returns the checksum of these rows.
    pub fn from_rows<R: AsRef<[Value]>>(rows: impl IntoIterator<Item = R>) -> Checksum {
        let mut sum = Checksum::default();
        rows.into_iter().for_each(|row| sum.add(row.as_ref()));
        sum
    }

    /// Adds a row.
    pub fn add(&mut self, row: &[Value]) {
        self.0 = self.0.wrapping_add(row_hash(row));
    }

    /// Removes a row.
    pub fn remove(&mut self, row: &[Value]) {
        self.0 = self.0.wrapping_sub(row_hash(row));
    }

    /// Returns the sum of both; for a result and a change of it, the checksum after the change.
    #[must_use]
    pub fn plus(self, change: Checksum) -> Checksum {
        Checksum(self.0.wrapping_add(change.0))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checksum, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.map(Checksum).ok_or_else(|| serde::de::Error::custom("a checksum is 16 hex digits"))
    }
}

fn row_hash(row: &[Value]) -> u64 {
    let mut hash = FNV_BASIS;
    for cell in row {
        match cell {
            Value::Null => feed(&mut hash, &[0]),
            Value::Integer(n) => {
                feed(&mut hash, &[1]);
                feed(&mut hash, &n.to_le_bytes());
            }
            Value::Real(x) => {
                feed(&mut hash, &[2]);
                feed(&mut hash, &x.to_bits().to_le_bytes());
            }
            Value::Text(text) => content(&mut hash, 3, text.as_bytes()),
            Value::Blob(bytes) => content(&mut hash, 4, bytes),
        }
    }
    mix(hash)
}

fn content(hash: &mut u64, tag: u8, bytes: &[u8]) {
    feed(hash, &[tag]);
    feed(hash, &(bytes.len() as u64).to_le_bytes());
    feed(hash, bytes);
}

fn feed(hash: &mut u64, bytes: &[u8]) {
    for byte in bytes {
        *hash = (*hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    }
}

fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with an independent implementation of the definition above, in Python.
    #[test]
    fn checksums_match_an_independent_implementation() {
        let cases: [(&[Value], &str); 7] = [
            (&[], "efd01f60ba992926"),
            (&[Value::Null], "b9034ad37056f5fb"),
            (&[Value::Integer(1)], "fead53f7dfcabe65"),
            (&[Value::Integer(-1), Value::Real(1.0)], "c0b1e2d9a88b577d"),
            (&[Value::Real(-0.0), Value::Real(f64::INFINITY)], "6e89b263389aa660"),
            (&[Value::from("é\0"), Value::from("")], "39b0d00c4d241501"),
            (&[Value::Blob(vec![0, 255])], "2b7113b1b61a1ccc"),
        ];
        for (row, expected) in cases {
            assert_eq!(Checksum::from_rows([row]).to_string(), expected, "{row:?}");
        }
    }

    #[test]
    fn checksums_depend_on_rows_but_not_on_their_order() {
        let rows: Vec<Vec<Value>> = vec![
            vec![Value::Integer(1), Value::Null],
            vec![Value::Null, Value::Integer(1)],
            vec![Value::Real(1.0), Value::Null],
            vec![Value::from("1"), Value::Null],
            vec![Value::Blob(b"1".to_vec()), Value::Null],
            vec![Value::from("ab"), Value::from("c")],
            vec![Value::from("a"), Value::from("bc")],
            vec![Value::Real(0.0), Value::Null],
            vec![Value::Real(-0.0), Value::Null],
        ];
        let mut seen = std::collections::BTreeSet::new();
        assert!(rows.iter().all(|row| seen.insert(row_hash(row))));

        let all = Checksum::from_rows(&rows);
        assert_eq!(Checksum::from_rows(rows.iter().rev()), all);
        let twice = Checksum::from_rows(rows.iter().chain([&rows[0]]));
        assert_ne!(twice, all, "a duplicate row counts twice");
        let mut sum = twice;
        sum.remove(&rows[0]);
        assert_eq!(sum, all);
        assert_eq!(Checksum::from_rows(&rows[..4]).plus(Checksum::from_rows(&rows[4..])), all);
    }

    #[test]
    fn checksums_serialise_as_hex_digits() {
        let json = serde_json::to_string(&Checksum(0xAB)).expect("it is JSON");
        assert_eq!(json, "\"00000000000000ab\"");
        assert_eq!(serde_json::from_str::<Checksum>(&json).ok(), Some(Checksum(0xAB)));
        for wrong in ["\"ab\"", "1", "\"+0000000000000ab\"", "\"00000000000000abc\""] {
            assert!(serde_json::from_str::<Checksum>(wrong).is_err(), "{wrong}");
        }
    }
}
