//! Stub.

/// A label selector.
#[derive(Clone, PartialEq, Debug)]
pub struct LabelSelector(String);

impl LabelSelector {
    /// Stub.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains("!!") { Err("stub".to_owned()) } else { Ok(Self(text.to_owned())) }
    }
}
