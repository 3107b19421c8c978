//! One page of a LIST → its objects, the version of the list, and where it goes on.

use crate::object::ObjectState;
use crate::resource_version::ResourceVersion;

/// A decoded page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListPage {
    /// `metadata.resourceVersion` of the list: the state all pages of one list are taken from.
    pub resource_version: ResourceVersion,
    /// `metadata.continue`, none on the last page.
    pub continue_token: Option<String>,
    /// The objects, bodies with `apiVersion` and `kind` like those of a watch.
    pub objects: Vec<ObjectState>,
}
