//! One page of a LIST → its objects, the version of the list, and where it goes on.

use bytes::Bytes;

use crate::codec::json_scan::{Object, Scanner};
use crate::codec::watch_event::{DecodeError, ManagedFields};
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

/// Decodes the body of one page.
///
/// Lists of built-in kinds leave `apiVersion` and `kind` out of their items; they are put in front of each body, the
/// kind being that of the list without `List`, so that a body is the same whether it came by a list or a watch.
///
/// # Errors
/// When the page is not one JSON object with `metadata.resourceVersion` around an array of objects with metadata.
pub fn decode(page: Bytes, managed_fields: ManagedFields) -> Result<ListPage, DecodeError> {
    let mut scanner = Scanner::new(&page)?;
    let mut items: Vec<Object> = Vec::new();
    let list = scanner.object(|scanner, key| {
        if scanner.known(key, &["items"]).is_none() {
            return scanner.skip_value();
        }
        items.clear();
        if scanner.peek() == Some(b'n') {
            return scanner.skip_value();
        }
        scanner.elements(|scanner| {
            items.push(scanner.object(|scanner, _| scanner.skip_value())?);
            Ok(())
        })
    })?;
    scanner.end()?;
    let Some(version) = list.metadata.resource_version else {
        return Err(DecodeError { what: "a list without metadata.resourceVersion", offset: list.span.start });
    };
    let continue_token = match list.metadata.continue_token {
        Some(token) => Some(scanner.decode(token)?.into_owned()).filter(|token| !token.is_empty()),
        None => None,
    };
    let api_version = list.api_version.map_or(Ok("".into()), |text| scanner.decode(text))?;
    let list_kind = list.kind.map_or(Ok("".into()), |text| scanner.decode(text))?;
    let type_meta = (&*api_version, list_kind.strip_suffix("List").unwrap_or_default());
    Ok(ListPage {
        resource_version: ResourceVersion::parse(&scanner.decode(version)?),
        continue_token,
        objects: items
            .iter()
            .map(|item| scanner.state(item, managed_fields, Some(type_meta)))
            .collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_text(text: &str) -> Result<ListPage, DecodeError> {
        decode(Bytes::copy_from_slice(text.as_bytes()), ManagedFields::Drop)
    }

    #[test]
    fn items_of_a_built_in_list_get_their_type() {
        let page = decode_text(
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"t\u006f"},"items":[
                {"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"5",
                 "managedFields":[{"x":1}]},"spec":{}}]}"#,
        )
        .unwrap();
        assert_eq!(page.resource_version, ResourceVersion::from(7));
        assert_eq!(page.continue_token.as_deref(), Some("to"));
        let object = &page.objects[0];
        assert_eq!((&*object.key.namespace, &*object.key.name, object.uid.as_str()), ("n", "a", "u"));
        assert_eq!(
            object.body,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"},"spec":{}}"#
        );
    }

    #[test]
    fn items_that_know_their_type_keep_it_though_the_list_names_itself_last() {
        let item =
            r#"{"apiVersion":"e.com/v1","kind":"Widget","metadata":{"name":"a","uid":"u","resourceVersion":"5"}}"#;
        let page = decode_text(&format!(
            r#"{{"apiVersion":"e.com/v2","items":[{item}],"metadata":{{"continue":"","resourceVersion":"7"}},"kind":"WidgetList"}}"#
        ))
        .unwrap();
        assert_eq!(page.continue_token, None);
        assert_eq!(page.objects[0].body, item);
    }

    #[test]
    fn an_empty_list_may_be_null() {
        let page = decode_text(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert!(page.objects.is_empty());
    }

    #[test]
    fn a_list_without_a_version_or_with_a_broken_item_is_refused() {
        for text in [
            r#"{"metadata":{},"items":[]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a","resourceVersion":"5"}}]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[1]}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[]}x"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[]"#,
            "[]",
        ] {
            assert!(decode_text(text).is_err(), "{text}");
        }
    }
}
