//! `metadata.managedFields`: who set which field. The model keeps one entry per writer, so that
//! readers which cut this part off have something to cut.

use serde_json::{Map, Value, json};

use crate::resource::{Origin, Resource};

/// Sets the entry of a writer to the fields that an object has, and keeps those of other writers.
pub fn record(
    resource: &Resource,
    object: &mut Map<String, Value>,
    manager: &str,
    subresource: Option<&str>,
    time: &str,
) {
    let fields = fields_of(resource, object, subresource);
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return };
    let mut entries = match metadata.remove("managedFields") {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    entries.retain(|entry| {
        let same_manager = entry.get("manager").and_then(Value::as_str) == Some(manager);
        !(same_manager && entry.get("subresource").and_then(Value::as_str) == subresource)
    });
    let mut entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": resource.api_version(),
        "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    if let Some(subresource) = subresource {
        entry["subresource"] = json!(subresource);
    }
    entries.push(entry);
    metadata.insert("managedFields".to_owned(), Value::Array(entries));
}

fn fields_of(resource: &Resource, object: &Map<String, Value>, subresource: Option<&str>) -> Value {
    let mut fields = Map::new();
    for (key, value) in object {
        let owned = match (key.as_str(), subresource) {
            ("kind" | "apiVersion", _) => false,
            ("status", None) => !resource.has_status,
            ("status", Some(_)) => true,
            (_, Some(_)) => false,
            _ => true,
        };
        if !owned {
            continue;
        }
        if key == "metadata" {
            let set_by_users = ["labels", "annotations", "generateName", "finalizers", "ownerReferences"];
            let metadata = value.as_object().into_iter().flatten();
            let shown: Map<String, Value> = metadata
                .filter(|(key, _)| set_by_users.contains(&key.as_str()))
                .map(|(key, value)| (format!("f:{key}"), tree(value, true)))
                .collect();
            if !shown.is_empty() {
                fields.insert("f:metadata".to_owned(), Value::Object(shown));
            }
        } else {
            // The top structures of built-in types are not maps and have no entry of their own.
            let whole = resource.origin == Origin::Custom || !matches!(key.as_str(), "spec" | "status");
            fields.insert(format!("f:{key}"), tree(value, whole));
        }
    }
    Value::Object(fields)
}

fn tree(value: &Value, whole: bool) -> Value {
    let Value::Object(map) = value else { return json!({}) };
    let mut fields: Map<String, Value> =
        map.iter().map(|(key, value)| (format!("f:{key}"), tree(value, true))).collect();
    if whole {
        fields.insert(".".to_owned(), json!({}));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::record;
    use crate::resource::Resource;

    #[test]
    fn each_writer_has_one_entry_with_its_fields() {
        let resource = Resource::built_in().into_iter().find(|resource| resource.plural == "configmaps").unwrap();
        let mut object =
            json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}}).as_object().unwrap().clone();
        record(&resource, &mut object, "one", None, "t1");
        record(&resource, &mut object, "two", None, "t2");
        record(&resource, &mut object, "one", None, "t3");
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let managers: Vec<&Value> = entries.iter().map(|entry| &entry["manager"]).collect();
        assert_eq!(managers, ["two", "one"]);
        let fields = json!({"f:data": {".": {}, "f:k": {}}, "f:metadata": {"f:labels": {".": {}, "f:x": {}}}});
        assert_eq!(entries[1]["fieldsV1"], fields);
    }
}
