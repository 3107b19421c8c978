//! One object of the API as sidewatch holds it: identity, version, and the body as bytes.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::resource_version::ResourceVersion;

/// `metadata.uid`: one incarnation of an object. Two objects with one name have two uids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uid(Arc<str>);

impl Uid {
    /// The uid as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for Uid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Namespace and name: the place of an object within its feed. Ordered by namespace, then name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// `metadata.namespace`, empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { self.name.fmt(f) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// One state of one object. Shared by reference between cache, journal and frames.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectState {
    /// Where the object is.
    pub key: ObjectKey,
    /// Which incarnation it is.
    pub uid: Uid,
    /// The version of this state; in a DELETED event that of the deletion.
    pub resource_version: ResourceVersion,
    /// The body as JSON text: one object, valid UTF-8, with `apiVersion` and `kind`.
    pub body: Bytes,
}

impl ObjectState {
    /// Bytes that this state keeps in memory: the body, the strings, and the structure around them.
    pub fn size_bytes(&self) -> usize {
        self.body.len() + self.key.namespace.len() + self.key.name.len() + self.uid.as_str().len() + size_of::<Self>()
    }
}
