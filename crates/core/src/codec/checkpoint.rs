//! The checkpoint: acked positions of the durable subscriptions, kept in an annotation of the Lease (D.5).
//!
//! JSON text, so that a person can read it with kubectl. A subscription without a position for a
//! feed has to be reset there: absence is the `reset_pending` of D.5, and a checkpoint that is
//! missing or cannot be read says the same for every feed. Fields that this version does not know
//! are kept and written again (E row 37).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::codec::cursor::{Fingerprint, Positions};
use crate::epoch::Epoch;
use crate::limits::CHECKPOINT_BYTES_MAX;
use crate::resource_version::ResourceVersion;

/// Version of the text form.
const VERSION: u32 = 1;

/// A decoded checkpoint.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Checkpoint {
    /// Hash of the cluster's uid; 0 when it was not known.
    pub cluster: u32,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Identity of the writer; for people.
    pub writer: String,
    /// The last write of an orderly release, made after the last emission.
    pub clean: bool,
    /// By name of the durable subscription.
    pub subscriptions: BTreeMap<String, StoredSubscription>,
    /// What a newer version wrote beside.
    pub unknown: Map<String, Value>,
}

/// What is stored of one durable subscription.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StoredSubscription {
    /// Acked position by feed; a feed that is not here has to be reset.
    pub positions: Positions,
    /// What a newer version wrote beside.
    pub unknown: Map<String, Value>,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Not the JSON that was expected.
    #[error("checkpoint is not readable")]
    Malformed(#[source] serde_json::Error),
    /// Written by a newer version.
    #[error("checkpoint has version {found}, this sidecar reads up to {VERSION}")]
    Version {
        /// The version in the text.
        found: u32,
    },
    /// A fingerprint that is not eight hex digits.
    #[error("checkpoint names a feed that is not a fingerprint")]
    Fingerprint,
    /// Larger than its share of the annotations.
    #[error("checkpoint of {bytes} bytes exceeds {CHECKPOINT_BYTES_MAX}")]
    TooLarge {
        /// Size of the text.
        bytes: usize,
    },
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    #[serde(default)]
    cluster: u32,
    #[serde(default)]
    epoch: u64,
    #[serde(default)]
    writer: String,
    #[serde(default)]
    clean: bool,
    #[serde(default)]
    subscriptions: BTreeMap<String, SubscriptionText>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
struct SubscriptionText {
    #[serde(default)]
    positions: BTreeMap<String, String>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl Checkpoint {
    /// The annotation's text.
    ///
    /// # Errors
    /// [`CheckpointError::TooLarge`]: never truncated (E row 32).
    pub fn encode(&self) -> Result<String, CheckpointError> {
        let subscriptions = self.subscriptions.iter().map(|(name, stored)| {
            let positions =
                stored.positions.iter().map(|(feed, rv)| (format!("{:08x}", feed.0), rv.to_string())).collect();
            (name.clone(), SubscriptionText { positions, unknown: stored.unknown.clone() })
        });
        let text = serde_json::to_string(&Text {
            version: VERSION,
            cluster: self.cluster,
            epoch: self.epoch.as_u64(),
            writer: self.writer.clone(),
            clean: self.clean,
            subscriptions: subscriptions.collect(),
            unknown: self.unknown.clone(),
        })
        .map_err(CheckpointError::Malformed)?;
        if text.len() > CHECKPOINT_BYTES_MAX {
            return Err(CheckpointError::TooLarge { bytes: text.len() });
        }
        Ok(text)
    }

    /// Reads an annotation's text.
    ///
    /// # Errors
    /// [`CheckpointError`] when nothing in it may be relied on.
    pub fn decode(text: &str) -> Result<Self, CheckpointError> {
        let text: Text = serde_json::from_str(text).map_err(CheckpointError::Malformed)?;
        if text.version > VERSION {
            return Err(CheckpointError::Version { found: text.version });
        }
        let mut subscriptions = BTreeMap::new();
        for (name, stored) in text.subscriptions {
            let mut positions = Positions::new();
            for (feed, rv) in stored.positions {
                let eight_digits = feed.len() == 8 && feed.bytes().all(|b| b.is_ascii_hexdigit());
                let hash = u32::from_str_radix(&feed, 16).ok().filter(|_| eight_digits);
                positions.insert(Fingerprint(hash.ok_or(CheckpointError::Fingerprint)?), ResourceVersion::parse(&rv));
            }
            subscriptions.insert(name, StoredSubscription { positions, unknown: stored.unknown });
        }
        Ok(Self {
            cluster: text.cluster,
            epoch: Epoch::from_u64(text.epoch),
            writer: text.writer,
            clean: text.clean,
            subscriptions,
            unknown: text.unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Checkpoint {
        Checkpoint {
            cluster: 5,
            epoch: Epoch::from_u64(1_882_403_635_200_003),
            writer: "shop-0_a1b2_c3d4".to_owned(),
            clean: true,
            subscriptions: [(
                "app".to_owned(),
                StoredSubscription {
                    positions: [
                        (Fingerprint(0x0000_00ff), ResourceVersion::from(4711)),
                        (Fingerprint(0xdead_beef), ResourceVersion::Opaque("v-2".into())),
                    ]
                    .into(),
                    unknown: Map::new(),
                },
            )]
            .into(),
            unknown: Map::new(),
        }
    }

    /// Every form ever shipped must stay readable.
    #[test]
    fn version_1_is_read_as_it_was_written() {
        let golden = include_str!("../../testdata/checkpoint/v1.json").trim_end();
        assert_eq!(sample().encode().unwrap(), golden);
        assert_eq!(Checkpoint::decode(golden).unwrap(), sample());
    }

    #[test]
    fn unknown_fields_are_written_again() {
        let text = r#"{"version":1,"keySet":{"a":1},"subscriptions":{"app":{"positions":{},"seek":true}}}"#;
        let again = Checkpoint::decode(text).unwrap().encode().unwrap();
        assert!(again.contains(r#""keySet":{"a":1}"#) && again.contains(r#""seek":true"#), "{again}");
    }

    #[test]
    fn what_cannot_be_relied_on_is_refused() {
        for text in
            ["", "{}", "[]", r#"{"version":2}"#, r#"{"version":1,"subscriptions":{"a":{"positions":{"x":"1"}}}}"#]
        {
            assert!(Checkpoint::decode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_checkpoint_over_its_limit_is_refused_whole() {
        let mut checkpoint = sample();
        let positions = (0..4000).map(|hash| (Fingerprint(hash), ResourceVersion::from(u64::MAX))).collect();
        checkpoint.subscriptions.insert("wide".to_owned(), StoredSubscription { positions, unknown: Map::new() });
        assert!(matches!(checkpoint.encode(), Err(CheckpointError::TooLarge { .. })));
    }
}
