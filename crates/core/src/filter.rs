//! Which changes a session gets, and which fields of an object (C.2). The only place that looks into bodies.
//!
//! Evaluation is total: what cannot be evaluated counts as matching, because a filter that failed
//! per object would have to drop the event or to block. A filter is evaluated on the old and on
//! the new state, as Kubernetes does for selectors: entering is an ADDED, leaving a DELETED.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::feed::{Change, ChangeKind, DeleteReason};
use crate::limits::FIELD_PATH_STEPS_MAX;
use crate::object::{ObjectKey, ObjectState};
use crate::selector::LabelSelector;

/// Which kinds of events are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTypes {
    /// ADDED.
    pub added: bool,
    /// MODIFIED.
    pub modified: bool,
    /// DELETED. Without it the delete guarantee is given up.
    pub deleted: bool,
}

impl Default for EventTypes {
    fn default() -> Self {
        Self { added: true, modified: true, deleted: true }
    }
}

/// Which changes a session gets.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Filter {
    /// Namespaces; empty for all.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Labels; none for all.
    pub labels: Option<LabelSelector>,
    /// Kinds of events.
    pub types: EventTypes,
    /// Leave out a MODIFIED whose selected fields are the same before and after.
    pub suppress_unchanged: bool,
}

impl Filter {
    /// What this change is for the session: none when it is not for it at all.
    pub fn verdict(&self, change: &Change, fields: Option<&FieldMask>) -> Option<ChangeKind> {
        let kind = self.selected(change)?;
        let wanted = match kind {
            ChangeKind::Added => self.types.added,
            ChangeKind::Modified => self.types.modified && !(self.suppress_unchanged && unchanged(change, fields)),
            ChangeKind::Deleted { .. } => self.types.deleted,
        };
        wanted.then_some(kind)
    }

    /// Whether a state is selected, as in a snapshot.
    pub fn matches(&self, state: &ObjectState) -> bool {
        self.matches_namespace(&state.key) && self.matches_labels(state)
    }

    fn selected(&self, change: &Change) -> Option<ChangeKind> {
        if !self.matches_namespace(&change.key) {
            return None;
        }
        if self.labels.is_none() {
            return Some(change.kind);
        }
        // A state that is not known may have matched: a superfluous DELETED is ignored (C.1 rule 4), a missing one is not.
        let matched = |state: &Option<Arc<ObjectState>>| state.as_ref().is_none_or(|state| self.matches_labels(state));
        match change.kind {
            ChangeKind::Added | ChangeKind::Deleted { .. } => matched(&change.object).then_some(change.kind),
            ChangeKind::Modified => match (matched(&change.old), matched(&change.object)) {
                (true, true) => Some(ChangeKind::Modified),
                (false, true) => Some(ChangeKind::Added),
                (true, false) => {
                    Some(ChangeKind::Deleted { reason: DeleteReason::Unselected, final_state_unknown: false })
                }
                (false, false) => None,
            },
        }
    }

    fn matches_namespace(&self, key: &ObjectKey) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(&key.namespace)
    }

    fn matches_labels(&self, state: &ObjectState) -> bool {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Metadata,
        }
        #[derive(Deserialize, Default)]
        struct Metadata {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        let Some(selector) = &self.labels else { return true };
        match serde_json::from_slice::<Object>(&state.body) {
            Ok(object) => {
                let labels = object.metadata.labels.unwrap_or_default();
                selector.matches(|key| labels.get(key).map(String::as_str))
            }
            Err(_) => true,
        }
    }
}

/// Whether old and new are known and agree in all selected fields.
fn unchanged(change: &Change, fields: Option<&FieldMask>) -> bool {
    let (Some(old), Some(new), Some(fields)) = (&change.old, &change.object, fields) else { return false };
    fields.apply_without_version(&old.body) == fields.apply_without_version(&new.body)
}

/// Fields of a body to keep. Identity (`apiVersion`, `kind`, name, namespace, uid, resourceVersion) always stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldMask {
    selected: Node,
    with_identity: Node,
}

/// A level of the mask: everything below a leaf is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Node(BTreeMap<String, Node>);

/// Why a path is not a field path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("payload.fields = {path:?}: {rule}")]
pub struct FieldMaskError {
    /// The path.
    pub path: String,
    /// What a path must be.
    pub rule: &'static str,
}

impl FieldMask {
    /// Reads paths such as `spec.replicas`. A dot inside a key is written `\.`; a path goes through lists into each of
    /// their elements.
    ///
    /// # Errors
    /// [`FieldMaskError`] for an empty path, an empty step, or more than [`FIELD_PATH_STEPS_MAX`] steps.
    pub fn parse(paths: &[String]) -> Result<Self, FieldMaskError> {
        let mut selected = Node::default();
        for path in paths {
            let steps = split(path);
            if steps.iter().any(String::is_empty) {
                let rule = "must be field names joined by dots, none of them empty";
                return Err(FieldMaskError { path: path.clone(), rule });
            }
            if steps.len() > FIELD_PATH_STEPS_MAX {
                return Err(FieldMaskError { path: path.clone(), rule: "must not name more than 64 fields" });
            }
            selected.keep(&steps);
        }
        let mut with_identity = selected.clone();
        for path in
            ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"]
        {
            with_identity.keep(&split(path));
        }
        Ok(Self { selected, with_identity })
    }

    /// The body with the selected fields only. Numbers and strings stay byte for byte as they were.
    pub fn apply(&self, body: &Bytes) -> Bytes {
        masked(body, &self.with_identity).map_or_else(|| body.clone(), Bytes::from)
    }

    fn apply_without_version(&self, body: &Bytes) -> Option<String> {
        masked(body, &self.selected)
    }
}

impl Node {
    fn keep(&mut self, steps: &[String]) {
        let Some((first, rest)) = steps.split_first() else { return };
        match self.0.get_mut(first) {
            // A leaf keeps everything below already.
            Some(node) if node.0.is_empty() => {}
            Some(node) if rest.is_empty() => node.0.clear(),
            Some(node) => node.keep(rest),
            None => self.0.entry(first.clone()).or_default().keep(rest),
        }
    }
}

fn split(path: &str) -> Vec<String> {
    let mut steps = vec![String::new()];
    let mut characters = path.chars();
    while let Some(character) = characters.next() {
        let step = steps.last_mut();
        match (character, step) {
            ('.', _) => steps.push(String::new()),
            ('\\', Some(step)) => step.extend(characters.next()),
            (character, Some(step)) => step.push(character),
            (_, None) => {}
        }
    }
    steps
}

fn masked(body: &[u8], mask: &Node) -> Option<String> {
    let raw: &RawValue = serde_json::from_slice(body).ok()?;
    let mut text = String::with_capacity(256);
    render(raw, mask, &mut text)?;
    Some(text)
}

/// Writes the selected part of `raw`; none, and nothing written, when nothing of it is selected.
fn render(raw: &RawValue, mask: &Node, text: &mut String) -> Option<()> {
    if mask.0.is_empty() {
        text.push_str(raw.get());
        return Some(());
    }
    if let Ok(object) = serde_json::from_str::<BTreeMap<String, &RawValue>>(raw.get()) {
        let start = text.len();
        text.push('{');
        for (key, below) in &mask.0 {
            let Some(value) = object.get(key) else { continue };
            let before = text.len();
            if !text.ends_with('{') {
                text.push(',');
            }
            let key = serde_json::to_string(key).ok()?;
            // Writing to a String cannot fail.
            let _ = write!(text, "{key}:");
            if render(value, below, text).is_none() {
                text.truncate(before);
            }
        }
        text.push('}');
        if text.len() == start + 2 && start > 0 {
            text.truncate(start);
            return None;
        }
        return Some(());
    }
    let list = serde_json::from_str::<Vec<&RawValue>>(raw.get()).ok()?;
    text.push('[');
    for (index, element) in list.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        if render(element, mask, text).is_none() {
            text.push_str("null");
        }
    }
    text.push(']');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::{added, deleted, modified};

    fn labelled(state: &Arc<ObjectState>, app: &str) -> Arc<ObjectState> {
        let body = Bytes::from(format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}}}}"#));
        Arc::new(ObjectState { body, ..ObjectState::clone(state) })
    }

    fn change(old: &str, new: &str) -> Change {
        let mut change = modified("a", 1, 2);
        change.old = change.old.as_ref().map(|state| labelled(state, old));
        change.object = change.object.as_ref().map(|state| labelled(state, new));
        change
    }

    fn by_label(text: &str) -> Filter {
        Filter { labels: Some(LabelSelector::parse(text).unwrap()), ..Filter::default() }
    }

    const UNSELECTED: ChangeKind = ChangeKind::Deleted { reason: DeleteReason::Unselected, final_state_unknown: false };

    #[test]
    fn entering_is_an_add_and_leaving_a_delete() {
        let filter = by_label("app=web");
        assert_eq!(filter.verdict(&change("web", "web"), None), Some(ChangeKind::Modified));
        assert_eq!(filter.verdict(&change("db", "web"), None), Some(ChangeKind::Added));
        assert_eq!(filter.verdict(&change("web", "db"), None), Some(UNSELECTED));
        assert_eq!(filter.verdict(&change("db", "db"), None), None);
    }

    #[test]
    fn an_unknown_old_state_may_have_matched() {
        let filter = by_label("app=web");
        let mut leaving = change("web", "db");
        leaving.old = None;
        assert_eq!(filter.verdict(&leaving, None), Some(UNSELECTED));
        let mut gone = deleted("a", 9);
        gone.object = None;
        assert_eq!(filter.verdict(&gone, None), Some(gone.kind));
    }

    #[test]
    fn namespaces_and_types_narrow() {
        let elsewhere = Filter { namespaces: ["till".into()].into(), ..Filter::default() };
        assert_eq!(elsewhere.verdict(&added("a", 1), None), None);
        let types = EventTypes { modified: false, ..EventTypes::default() };
        let quiet = Filter { types, ..Filter::default() };
        assert_eq!(quiet.verdict(&modified("a", 1, 2), None), None);
        assert_eq!(quiet.verdict(&added("a", 1), None), Some(ChangeKind::Added));
    }

    fn mask(paths: &[&str]) -> FieldMask {
        FieldMask::parse(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_selected_changes_are_told() {
        let filter = Filter { suppress_unchanged: true, ..Filter::default() };
        let fields = mask(&["metadata.labels.app"]);
        assert_eq!(filter.verdict(&change("web", "web"), Some(&fields)), None);
        assert_eq!(filter.verdict(&change("web", "db"), Some(&fields)), Some(ChangeKind::Modified));
        assert_eq!(
            filter.verdict(&change("web", "web"), None),
            Some(ChangeKind::Modified),
            "no fields, nothing to compare"
        );
        assert!(filter.verdict(&deleted("a", 3), Some(&fields)).is_some(), "a delete is never suppressed");
    }

    #[test]
    fn a_mask_keeps_identity_and_exact_text() {
        let body = Bytes::from_static(
            br#"{"kind":"W","apiVersion":"v1","metadata":{"name":"a","uid":"u","labels":{"x.y/z":"1","b":"2"}},"spec":{"n":123456789012345678901234567890,"f":1.0,"c":[{"i":"p","q":1},{"i":"r"}]}}"#,
        );
        let fields = mask(&["spec.n", "spec.c.i", "metadata.labels.x\\.y/z", "spec.missing.deep"]);
        assert_eq!(
            std::str::from_utf8(&fields.apply(&body)).unwrap(),
            r#"{"apiVersion":"v1","kind":"W","metadata":{"labels":{"x.y/z":"1"},"name":"a","uid":"u"},"spec":{"c":[{"i":"p"},{"i":"r"}],"n":123456789012345678901234567890}}"#
        );
        assert_eq!(mask(&["spec", "spec.n"]), mask(&["spec"]), "the wider path wins");
        assert_eq!(mask(&["spec.n", "spec"]), mask(&["spec"]), "in either order");
    }

    #[test]
    fn a_bad_path_names_itself() {
        for path in ["", "spec..n", ".spec", "spec."] {
            let error = FieldMask::parse(&[path.to_owned()]).unwrap_err();
            assert_eq!(error.path, path);
        }
    }

    #[test]
    fn a_path_is_bounded_so_that_no_client_can_overflow_the_stack() {
        let path = |steps: usize| vec![vec!["a"; steps].join(".")];
        assert!(FieldMask::parse(&path(FIELD_PATH_STEPS_MAX)).is_ok());
        assert!(FieldMask::parse(&path(FIELD_PATH_STEPS_MAX + 1)).is_err());
        assert!(FieldMask::parse(&path(100_000)).is_err());
    }

    #[test]
    fn what_is_not_json_is_left_whole() {
        let body = Bytes::from_static(b"not json");
        assert_eq!(mask(&["spec"]).apply(&body), body);
    }
}
