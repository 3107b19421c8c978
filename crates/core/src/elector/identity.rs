//! Who writes the Lease: pod name, pod uid and a boot id, so that no two incarnations share a name (docs/protocol.md, A.10).

use std::fmt;

/// `<pod name>_<pod uid>_<boot id>`: what this replica writes into `spec.holderIdentity`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    text: String,
    /// Bytes of `<pod name>_<pod uid>_`.
    pod_len: usize,
}

impl Identity {
    /// The identity of one start of the sidecar in one pod; `boot_id` must be another one at each start.
    ///
    /// None of the parts may be empty, and neither uid nor boot id may contain `_`: names and uids of Kubernetes do
    /// not, and boot ids are ours.
    ///
    /// # Panics
    /// When a part breaks that rule.
    pub fn new(pod_name: &str, pod_uid: &str, boot_id: &str) -> Self {
        assert!([pod_name, pod_uid, boot_id].iter().all(|part| !part.is_empty()), "a part of the identity is empty");
        assert!(!pod_uid.contains('_') && !boot_id.contains('_'), "uid or boot id contains the separator");
        let text = format!("{pod_name}_{pod_uid}_{boot_id}");
        Self { pod_len: text.len() - boot_id.len(), text }
    }

    /// The whole identity.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether `holder` is another start of the sidecar in this very pod.
    pub fn is_earlier_start(&self, holder: &str) -> bool {
        let same_pod = holder.strip_prefix(&self.text[..self.pod_len]);
        same_pod.is_some_and(|boot_id| !boot_id.is_empty() && !boot_id.contains('_')) && holder != self.text
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_start_in_the_same_pod_is_an_earlier_one() {
        let identity = Identity::new("shop-0", "uid-1", "boot-b");
        assert_eq!(identity.as_str(), "shop-0_uid-1_boot-b");
        assert!(identity.is_earlier_start("shop-0_uid-1_boot-a"));
        for holder in ["", "shop-0_uid-1_boot-b", "shop-0_uid-2_boot-a", "shop-1_uid-1_boot-a", "shop-0_uid-1_", "x"] {
            assert!(!identity.is_earlier_start(holder), "{holder}");
        }
    }
}
