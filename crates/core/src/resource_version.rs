//! `metadata.resourceVersion`: the shared log offset of one resource type.
//!
//! Orderable as an integer within one resource type since Kubernetes 1.35 (KEP-5504), and in
//! practice always: it is the etcd revision. Aggregated API servers may answer otherwise, so a
//! value that is not a well-formed number is kept as it is and compared for equality only.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Decimal digits of 128 bits.
const DECIMAL_DIGITS_MAX: usize = 39;

/// A version as the API server wrote it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ResourceVersion {
    /// A well-formed number: digits, no leading zero, not "0", at most 128 bits (the bound of the conformance test).
    Ordered(u128),
    /// Anything else; equal or not, never more.
    Opaque(Arc<str>),
}

impl ResourceVersion {
    /// Reads a version. Never fails: what is not a well-formed number is opaque.
    pub fn parse(text: &str) -> Self {
        let well_formed = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        match text.parse() {
            Ok(number) if well_formed => Self::Ordered(number),
            _ => Self::Opaque(text.into()),
        }
    }

    /// Whether this version comes after `other`: none when the two cannot be ordered.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Ordered(a), Self::Ordered(b)) => Some(a.cmp(b)),
            (a, b) if a == b => Some(Ordering::Equal),
            _ => None,
        }
    }

    /// Whether this version is known to come after `other`.
    pub fn is_after(&self, other: &Self) -> bool {
        self.order(other) == Some(Ordering::Greater)
    }

    /// Whether this version is known to be `other` or to come after it.
    pub fn reaches(&self, other: &Self) -> bool {
        matches!(self.order(other), Some(Ordering::Greater | Ordering::Equal))
    }

    /// An upper bound of the length of the text, in bytes.
    pub fn text_bytes_max(&self) -> usize {
        match self {
            Self::Ordered(_) => DECIMAL_DIGITS_MAX,
            Self::Opaque(text) => text.len(),
        }
    }

    /// Whether the version can be ordered.
    pub const fn is_ordered(&self) -> bool {
        matches!(self, Self::Ordered(_))
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self::Ordered(u128::from(number))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordered(number) => number.fmt(f),
            Self::Opaque(text) => text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_numbers_are_ordered() {
        assert_eq!(ResourceVersion::parse("42"), ResourceVersion::Ordered(42));
        assert_eq!(ResourceVersion::parse(&u128::MAX.to_string()), ResourceVersion::Ordered(u128::MAX));
        for text in ["", "0", "007", "+7", "-1", "1.5", "a", "340282366920938463463374607431768211456"] {
            assert_eq!(ResourceVersion::parse(text), ResourceVersion::Opaque(text.into()), "{text}");
        }
    }

    #[test]
    fn longer_numbers_come_after_shorter_ones() {
        let (nine, ten) = (ResourceVersion::parse("9"), ResourceVersion::parse("10"));
        assert!(ten.is_after(&nine) && ten.reaches(&nine) && !nine.is_after(&ten));
    }

    #[test]
    fn opaque_versions_are_equal_or_unordered() {
        let (a, b) = (ResourceVersion::parse("a"), ResourceVersion::parse("b"));
        assert_eq!(a.order(&b), None);
        assert_eq!(a.order(&ResourceVersion::from(1)), None);
        assert!(a.reaches(&a.clone()) && !a.is_after(&b) && !b.is_after(&a));
    }
}
