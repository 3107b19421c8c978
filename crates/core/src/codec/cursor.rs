//! The cursor: a position of every feed, as the opaque text a client keeps and acks (C.3).
//!
//! ```text
//! base64url( version:u8 | cluster:u32 | epoch:varint | incarnation:u32
//!            | n:varint × { fingerprint:u32, 0 rv:varint | 1 length:varint rv:text } | crc32 )
//! ```
//!
//! The positions are valid on every replica. `incarnation` names the process that made the cursor:
//! only that process knows that everything at or before it was delivered by itself.

use std::collections::BTreeMap;

use crate::epoch::Epoch;
use crate::resource_version::ResourceVersion;

/// Version of the binary form. Older ones stay readable; see `testdata/cursor`.
const VERSION: u8 = 1;
/// No cursor of ours is longer: 64 KiB hold the positions of 3000 feeds.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Bytes of a varint of 128 bits.
const VARINT_BYTES_MAX: usize = 19;

/// Names a feed's definition across replicas and restarts: a hash over group, resource, namespace and selectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fingerprint(pub u32);

impl Fingerprint {
    /// Hashes the parts of a definition (FNV-1a over length-prefixed parts, folded to 32 bits).
    pub fn of(parts: &[&str]) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        for part in parts {
            (part.len() as u64).to_be_bytes().into_iter().for_each(&mut eat);
            part.bytes().for_each(&mut eat);
        }
        Self((hash ^ (hash >> 32)) as u32)
    }
}

/// A position of every feed that has one.
pub type Positions = BTreeMap<Fingerprint, ResourceVersion>;

/// A decoded cursor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// Hash of the cluster's uid; 0 when it was not known.
    pub cluster: u32,
    /// Epoch in which it was made; for people, positions are valid in any.
    pub epoch: Epoch,
    /// The process that made it.
    pub incarnation: u32,
    /// Where each feed stands.
    pub positions: Positions,
}

/// Why a text is not a cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CursorError {
    /// Characters outside base64url, or an impossible length.
    #[error("is not base64url text")]
    Text,
    /// The check sum does not match.
    #[error("is damaged: its check sum does not match")]
    Checksum,
    /// A version this sidecar does not know.
    #[error("has a version this sidecar does not know")]
    Version,
    /// The check sum matches and the content does not parse.
    #[error("is malformed")]
    Content,
}

impl Cursor {
    /// An upper bound of the length of the text of a cursor with these positions, in bytes.
    pub fn text_bytes_max<'a>(positions: impl Iterator<Item = &'a ResourceVersion>) -> usize {
        const FIXED_BYTES: usize = 1 + 4 + 10 + 4 + 10 + 4;
        let position = |rv: &ResourceVersion| 4 + 1 + VARINT_BYTES_MAX + rv.text_bytes_max();
        (FIXED_BYTES + positions.map(position).sum::<usize>()).div_ceil(3) * 4
    }

    /// The text form.
    pub fn encode(&self) -> String {
        let mut bytes = Vec::with_capacity(24 + self.positions.len() * 10);
        bytes.push(VERSION);
        bytes.extend(self.cluster.to_be_bytes());
        put_varint(&mut bytes, u128::from(self.epoch.as_u64()));
        bytes.extend(self.incarnation.to_be_bytes());
        put_varint(&mut bytes, self.positions.len() as u128);
        for (fingerprint, position) in &self.positions {
            bytes.extend(fingerprint.0.to_be_bytes());
            match position {
                ResourceVersion::Ordered(number) => {
                    bytes.push(0);
                    put_varint(&mut bytes, *number);
                }
                ResourceVersion::Opaque(text) => {
                    bytes.push(1);
                    put_varint(&mut bytes, text.len() as u128);
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes.extend(crc32(&bytes).to_be_bytes());
        base64url::encode(&bytes)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`CursorError`] when the text was not made by [`Cursor::encode`] of a known version.
    pub fn decode(text: &str) -> Result<Self, CursorError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(CursorError::Text);
        }
        let bytes = base64url::decode(text).ok_or(CursorError::Text)?;
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or(CursorError::Text)?;
        if crc32(content) != u32::from_be_bytes(*sum) {
            return Err(CursorError::Checksum);
        }
        match content.first() {
            Some(&VERSION) => Reader { rest: &content[1..] }.cursor().ok_or(CursorError::Content),
            Some(_) => Err(CursorError::Version),
            None => Err(CursorError::Content),
        }
    }
}

/// Reads forward; none at every read past the end.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn cursor(mut self) -> Option<Cursor> {
        let cluster = self.u32()?;
        let epoch = Epoch::from_u64(u64::try_from(self.varint()?).ok()?);
        let incarnation = self.u32()?;
        let mut positions = Positions::new();
        for _ in 0..self.varint()? {
            let fingerprint = Fingerprint(self.u32()?);
            let position = match self.take(1)? {
                [0] => ResourceVersion::Ordered(self.varint()?),
                [1] => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    ResourceVersion::Opaque(std::str::from_utf8(self.take(length)?).ok()?.into())
                }
                _ => return None,
            };
            positions.insert(fingerprint, position);
        }
        self.rest.is_empty().then_some(Cursor { cluster, epoch, incarnation, positions })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    fn varint(&mut self) -> Option<u128> {
        let mut number = 0_u128;
        for shift in (0..128).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u128::from(byte & 0x7f);
            if part << shift >> shift != part {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// CRC-32 (IEEE, reflected), bit by bit: a cursor is some fifty bytes.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// RFC 4648 section 5 without padding.
mod base64url {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    pub(super) fn encode(bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for group in bytes.chunks(3) {
            let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
            for place in 0..=group.len() {
                text.push(char::from(ALPHABET[(bits >> (18 - 6 * place)) as usize & 63]));
            }
        }
        text
    }

    pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
        for group in text.as_bytes().chunks(4) {
            if group.len() == 1 {
                return None;
            }
            let mut bits = 0_u32;
            for character in group {
                let value = match character {
                    b'A'..=b'Z' => character - b'A',
                    b'a'..=b'z' => character - b'a' + 26,
                    b'0'..=b'9' => character - b'0' + 52,
                    b'-' => 62,
                    b'_' => 63,
                    _ => return None,
                };
                bits = bits << 6 | u32::from(value);
            }
            bits <<= 6 * (4 - group.len());
            bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Cursor {
        Cursor {
            cluster: 0xC1A5_7E12,
            epoch: Epoch::from_u64(1_882_403_635_200_003),
            incarnation: 7,
            positions: [
                (Fingerprint(1), ResourceVersion::from(300)),
                (Fingerprint(2), ResourceVersion::Opaque("v-17".into())),
            ]
            .into(),
        }
    }

    /// Every form ever shipped must stay readable.
    #[test]
    fn version_1_is_read_as_it_was_written() {
        let golden = include_str!("../../testdata/cursor/v1.txt").trim_end();
        assert_eq!(sample().encode(), golden);
        assert_eq!(Cursor::decode(golden), Ok(sample()));
    }

    #[test]
    fn garbage_is_refused_with_its_reason() {
        assert_eq!(Cursor::decode(""), Err(CursorError::Text));
        assert_eq!(Cursor::decode("not a cursor"), Err(CursorError::Text));
        assert_eq!(Cursor::decode("AAAAAAAAAAAA"), Err(CursorError::Checksum));
        let mut text = sample().encode().into_bytes();
        text[3] ^= 1;
        assert_eq!(Cursor::decode(std::str::from_utf8(&text).unwrap()), Err(CursorError::Checksum));
        let mut newer = vec![9, 0, 0];
        newer.extend(crc32(&newer).to_be_bytes());
        assert_eq!(Cursor::decode(&base64url::encode(&newer)), Err(CursorError::Version));
        let mut short = vec![1, 0, 0];
        short.extend(crc32(&short).to_be_bytes());
        assert_eq!(Cursor::decode(&base64url::encode(&short)), Err(CursorError::Content));
    }

    #[test]
    fn fingerprints_keep_parts_apart() {
        assert_ne!(Fingerprint::of(&["ab", "c"]), Fingerprint::of(&["a", "bc"]));
        assert_eq!(Fingerprint::of(&["ab", "c"]), Fingerprint::of(&["ab", "c"]));
    }

    #[test]
    fn check_sum_is_crc32() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    proptest! {
        #[test]
        fn every_cursor_round_trips(
            cluster: u32, epoch: u64, incarnation: u32,
            entries in proptest::collection::btree_map(any::<u32>(), prop_oneof![
                any::<u128>().prop_map(ResourceVersion::Ordered),
                "[a-z.-]{0,20}".prop_map(|text| ResourceVersion::Opaque(text.as_str().into())),
            ], 0..12),
        ) {
            let positions = entries.into_iter().map(|(hash, rv)| (Fingerprint(hash), rv)).collect();
            let cursor = Cursor { cluster, epoch: Epoch::from_u64(epoch), incarnation, positions };
            prop_assert!(cursor.encode().len() <= Cursor::text_bytes_max(cursor.positions.values()));
            prop_assert_eq!(Cursor::decode(&cursor.encode()), Ok(cursor));
        }

        #[test]
        fn no_text_makes_decoding_panic(text in ".{0,80}") {
            let _ = Cursor::decode(&text);
        }
    }
}
