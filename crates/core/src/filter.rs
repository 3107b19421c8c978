//! Stub.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::selector::LabelSelector;

/// Which events a session gets.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Namespaces; empty for all.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Labels; none for all.
    pub labels: Option<LabelSelector>,
    /// Event types.
    pub types: EventTypes,
    /// Drop MODIFIED when the field mask selects nothing that changed.
    pub suppress_unchanged: bool,
}

/// Event types that are delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTypes {
    /// ADDED.
    pub added: bool,
    /// MODIFIED.
    pub modified: bool,
    /// DELETED.
    pub deleted: bool,
}

impl Default for EventTypes {
    fn default() -> Self {
        Self { added: true, modified: true, deleted: true }
    }
}

/// Fields of a body to keep, as dotted paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldMask(Vec<Vec<String>>);

impl FieldMask {
    /// Stub.
    pub fn parse(paths: &[String]) -> Result<Self, String> {
        paths
            .iter()
            .map(|path| {
                let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
                if parts.iter().any(String::is_empty) { Err(format!("{path:?} has an empty part")) } else { Ok(parts) }
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
