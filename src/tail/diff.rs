//! A short hint of what changed between two states of an object.

use serde_json::Value;

/// Changes that are spelt out; the rest is counted.
const CHANGES_SHOWN_MAX: usize = 3;
/// Characters of a value that are shown.
const VALUE_CHARACTERS_MAX: usize = 32;
/// Fields that change with every write and tell nothing.
const SILENT: [&str; 3] = ["metadata.resourceVersion", "metadata.managedFields", "metadata.generation"];

/// `spec.replicas: 1 → 2, status.phase: "Pending" → "Running", +2 more`; empty when nothing worth telling changed, or
/// when either text is not JSON. Of Secrets only the paths are told.
pub(super) fn hint(old: &str, new: &str) -> String {
    let (Ok(old), Ok(new)) = (serde_json::from_str::<Value>(old), serde_json::from_str::<Value>(new)) else {
        return String::new();
    };
    let secret = new.get("kind").and_then(Value::as_str) == Some("Secret");
    let mut changes = Vec::new();
    compare("", Some(&old), Some(&new), &mut changes);
    let mut text = changes
        .iter()
        .take(CHANGES_SHOWN_MAX)
        .map(|change| if secret { change.path.clone() } else { change.to_string() })
        .collect::<Vec<_>>()
        .join(", ");
    if changes.len() > CHANGES_SHOWN_MAX {
        text.push_str(&format!(", +{} more", changes.len() - CHANGES_SHOWN_MAX));
    }
    text
}

struct Change<'v> {
    path: String,
    old: Option<&'v Value>,
    new: Option<&'v Value>,
}

impl std::fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.old, self.new) {
            (Some(old), Some(new)) => write!(f, "{}: {} → {}", self.path, short(old), short(new)),
            (None, Some(new)) => write!(f, "+{}: {}", self.path, short(new)),
            (_, None) => write!(f, "-{}", self.path),
        }
    }
}

fn compare<'v>(path: &str, old: Option<&'v Value>, new: Option<&'v Value>, changes: &mut Vec<Change<'v>>) {
    if old == new || SILENT.contains(&path) {
        return;
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (old, new) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let added = right.keys().filter(|key| !left.contains_key(*key));
            for key in left.keys().chain(added) {
                compare(&below(key), left.get(key), right.get(key), changes);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path}[{index}]"), Some(left), Some(right), changes);
            }
        }
        _ => changes.push(Change { path: path.to_owned(), old, new }),
    }
}

/// The value as JSON, cut.
fn short(value: &Value) -> String {
    let text = match value {
        Value::Object(fields) => format!("{{{} fields}}", fields.len()),
        Value::Array(items) => format!("[{} items]", items.len()),
        other => other.to_string(),
    };
    match text.char_indices().nth(VALUE_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_changed_and_counts_the_rest() {
        let old = r#"{"metadata":{"resourceVersion":"1"},"spec":{"replicas":1,"x":[{"a":1},{"a":2}]}}"#;
        let new = r#"{"metadata":{"resourceVersion":"2"},"spec":{"replicas":2,"x":[{"a":1},{"a":3}],"y":{"z":true}}}"#;
        assert_eq!(hint(old, new), "spec.replicas: 1 → 2, spec.x[1].a: 2 → 3, +spec.y: {1 fields}");
        assert_eq!(hint(r#"{"a":1,"b":2,"c":3,"d":4}"#, "{}"), "-a, -b, -c, +1 more");
        assert_eq!(hint(r#"{"metadata":{"resourceVersion":"1"}}"#, r#"{"metadata":{"resourceVersion":"2"}}"#), "");
        assert_eq!(hint("", "{"), "");
        let long = hint(r#"{"a":1}"#, &format!(r#"{{"a":"{}"}}"#, "ä".repeat(50)));
        assert_eq!(long.chars().count(), "a: 1 → ".chars().count() + VALUE_CHARACTERS_MAX + 1);
    }

    #[test]
    fn values_of_secrets_are_not_shown() {
        let hint = hint(r#"{"kind":"Secret","data":{"k":"b2xk"}}"#, r#"{"kind":"Secret","data":{"k":"bmV3"}}"#);
        assert_eq!(hint, "data.k");
    }
}
