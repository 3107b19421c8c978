//! Stub.

/// Which events a session gets.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Namespaces; empty for all.
    pub namespaces: std::collections::BTreeSet<String>,
}

/// Fields of a body to keep, as dotted paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldMask(Vec<Vec<String>>);
