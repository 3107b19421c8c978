//! Lists: which revision answers, pages, and the tokens that continue them.
//!
//! Implements `docs/protocol.md` A.4: consistent, any, not older than, exact; pages that stay at
//! the revision of the first one; tokens that expire with compaction.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::history::{Compacted, History};
use crate::object::Form;
use crate::request::Query;
use crate::resource::{Origin, Resource, ResourceId};
use crate::selector::Selector;
use crate::status::Failure;

/// Which state a list asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The newest, consistently.
    Newest,
    /// Any, from the cache: RV `0`. The limit is ignored, as the cache does.
    Any,
    /// At least this revision.
    NotOlderThan(u64),
    /// This revision.
    Exact(u64),
}

/// Reads and checks a resourceVersion parameter; empty is `None`.
///
/// # Errors
/// With the server's text about the value.
pub fn parse_version(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let why =
        || format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax");
    text.parse().map(Some).map_err(|_| why())
}

/// Checks the list options that exclude one another.
///
/// # Errors
/// 422 Invalid.
pub fn check_options(query: &Query) -> Result<(), Failure> {
    let (version, matching) = (query.get("resourceVersion"), query.get("resourceVersionMatch"));
    let forbidden = |field: &str, why: &str| {
        Err(Failure::invalid_options(field, "FieldValueForbidden", &format!("Forbidden: {why}")))
    };
    if query.flag("sendInitialEvents").is_some() {
        return forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    match matching {
        "" => Ok(()),
        _ if !query.get("continue").is_empty() => {
            forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
        }
        _ if version.is_empty() => {
            forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        "Exact" if version == "0" => {
            forbidden("resourceVersionMatch", r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#)
        }
        "Exact" | "NotOlderThan" => Ok(()),
        other => Err(unsupported_match(other)),
    }
}

/// 422 for a `resourceVersionMatch` that does not exist.
pub fn unsupported_match(value: &str) -> Failure {
    let why = format!(r#"Unsupported value: {value:?}: supported values: "Exact", "NotOlderThan", """#);
    Failure::invalid_options("resourceVersionMatch", "FieldValueNotSupported", &why)
}

/// Position between two pages. The text is opaque to clients; its layout resembles the server's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    v: String,
    /// Revision of the list; -1: whatever is newest.
    rv: i64,
    /// First key of the next page.
    start: String,
    /// Objects left, when that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
}

const TOKEN_FORMAT: &str = "meta.k8s.io/v1";

impl Token {
    fn encode(&self) -> String {
        base64_encode(&serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Token, Failure> {
        let token = base64_decode(text).and_then(|json| serde_json::from_slice::<Token>(&json).ok());
        token.filter(|token| token.v == TOKEN_FORMAT).ok_or_else(|| {
            Failure::bad_request("invalid continue token: continue key is not valid: it does not decode")
        })
    }
}

/// What a list reads from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The store.
    pub history: &'a History,
    /// The type.
    pub resource: &'a Resource,
    /// Its table.
    pub id: ResourceId,
    /// Revision that stands for the newest one; lower than the true one on a stale server.
    pub newest: u64,
}

/// Answers a list.
///
/// # Errors
/// 400 and 422 for bad options, 410 for compacted revisions and tokens, 504 for the future.
pub fn list(source: Source<'_>, namespace: Option<&str>, query: &Query, form: Form) -> Result<Bytes, Failure> {
    check_options(query)?;
    let number = |name: &str| {
        let bad = |text: String| Failure::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        query.number(name).map_err(bad)
    };
    let limit = number("limit")?.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
    let version = parse_version(query.get("resourceVersion"))
        .map_err(|why| Failure::bad_request(format!("invalid resource version: {why}")))?;
    let selector = Selector::parse(source.resource, query.get("labelSelector"), query.get("fieldSelector"))?;
    let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();

    let page = match query.get("continue") {
        "" => first_page(source, version, query.get("resourceVersionMatch"), limit)?,
        _ if version.is_some_and(|version| version > 0) => {
            return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
        }
        text => next_page(source, Token::decode(text)?, limit)?,
    };
    render(source, &page, &prefix, &selector, form)
}

/// One page to be read.
struct Page {
    revision: u64,
    start: String,
    limit: Option<usize>,
    left: Option<u64>,
}

fn first_page(source: Source<'_>, version: Option<u64>, matching: &str, limit: Option<usize>) -> Result<Page, Failure> {
    let wanted = match (version, matching) {
        (None, _) => Version::Newest,
        (Some(0), _) => Version::Any,
        (Some(version), "Exact") => Version::Exact(version),
        // A limit without a match rule has always meant the exact revision.
        (Some(version), "") if limit.is_some() => Version::Exact(version),
        (Some(version), _) => Version::NotOlderThan(version),
    };
    let current = source.history.revision();
    let page = |revision: u64, limit: Option<usize>| Page { revision, start: String::new(), limit, left: None };
    match wanted {
        Version::Newest => Ok(page(source.newest, limit)),
        Version::Any => Ok(page(source.newest, None)),
        Version::Exact(version) | Version::NotOlderThan(version) if version > current => {
            Err(Failure::too_large_version(version, current))
        }
        Version::NotOlderThan(version) => Ok(page(source.newest.max(version), limit)),
        Version::Exact(version) if version < source.history.compacted() => Err(Failure::expired_list()),
        Version::Exact(version) => Ok(page(version, limit)),
    }
}

fn next_page(source: Source<'_>, token: Token, limit: Option<usize>) -> Result<Page, Failure> {
    let Ok(revision) = u64::try_from(token.rv) else {
        return Ok(Page { revision: source.newest, start: token.start, limit, left: None });
    };
    if revision < source.history.compacted() {
        let inconsistent = Token { rv: -1, left: None, ..token };
        return Err(Failure::expired_page(inconsistent.encode()));
    }
    if revision > source.history.revision() {
        return Err(Failure::too_large_version(revision, source.history.revision()));
    }
    Ok(Page { revision, start: token.start, limit, left: token.left })
}

fn render(source: Source<'_>, page: &Page, prefix: &str, selector: &Selector, form: Form) -> Result<Bytes, Failure> {
    let Source { history, resource, id, .. } = source;
    let expired = |Compacted| Failure::expired_list();
    let mut items = Vec::new();
    let mut len = 0;
    let mut next = None;
    let mut last = "";
    for (key, state) in history.range(id, page.revision, prefix, &page.start).map_err(expired)? {
        if !selector.matches(state) {
            continue;
        }
        if page.limit == Some(len) {
            next = Some(format!("{last}\0"));
            break;
        }
        if len > 0 {
            items.push(b',');
        }
        state.write_item(form, &mut items);
        (len, last) = (len + 1, key);
    }

    let mut token = None;
    let mut remaining = None;
    if let Some(start) = next {
        // Counting is left out where the server leaves it out: it does not evaluate selectors ahead.
        if selector.is_everything() {
            let known = page.left.map(|left| left.saturating_sub(len as u64));
            let whole_type = page.revision == history.revision() && prefix.is_empty() && page.start.is_empty();
            remaining = known.or_else(|| whole_type.then(|| (history.live_len(id) - len) as u64));
            if remaining.is_none() {
                remaining = Some(history.range(id, page.revision, prefix, &start).map_err(expired)?.count() as u64);
            }
        }
        let rv = i64::try_from(page.revision).unwrap_or(i64::MAX);
        token = Some(Token { v: TOKEN_FORMAT.to_owned(), rv, start, left: remaining }.encode());
    }
    Ok(envelope(resource, form, page.revision, token.as_deref(), remaining, &items))
}

/// Puts items into a list object, with the key order that the type's server writes.
pub fn envelope(
    resource: &Resource,
    form: Form,
    revision: u64,
    token: Option<&str>,
    remaining: Option<u64>,
    items: &[u8],
) -> Bytes {
    let custom = resource.origin == Origin::Custom && form == Form::Full;
    let remaining = remaining.map(|count| format!(r#""remainingItemCount":{count}"#));
    let mut metadata = Vec::new();
    let version = format!(r#""resourceVersion":"{revision}""#);
    let token = match token {
        Some(token) => Some(format!(r#""continue":"{token}""#)),
        // The list of a custom resource is a plain map, whose empty token is written.
        None if custom => Some(r#""continue":"""#.to_owned()),
        None => None,
    };
    if custom {
        metadata.extend([token, remaining, Some(version)]);
    } else {
        metadata.extend([Some(version), token, remaining]);
    }
    let metadata = metadata.into_iter().flatten().collect::<Vec<_>>().join(",");
    let mut out = Vec::with_capacity(items.len() + metadata.len() + 128);
    let (head, tail) = match form {
        Form::Metadata => (
            format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{{{metadata}}},"items":["#
            ),
            "]}".to_owned(),
        ),
        Form::Full if custom => (
            format!(r#"{{"apiVersion":"{}","items":["#, resource.api_version()),
            format!(r#"],"kind":"{}List","metadata":{{{metadata}}}}}"#, resource.kind),
        ),
        Form::Full => (
            format!(
                r#"{{"kind":"{}List","apiVersion":"{}","metadata":{{{metadata}}},"items":["#,
                resource.kind,
                resource.api_version()
            ),
            "]}".to_owned(),
        ),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(items);
    out.extend_from_slice(tail.as_bytes());
    Bytes::from(out)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Encodes as base64 for URLs, without padding.
fn base64_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 4 / 3 + 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().enumerate().fold(0u32, |group, (index, byte)| group | u32::from(*byte) << (16 - 8 * index));
        for index in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(group >> (18 - 6 * index) & 63) as usize]));
        }
    }
    out
}

fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut group, mut bits) = (0u32, 0);
    for character in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == character)? as u32;
        group = group << 6 | value;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((group >> bits & 0xff) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::{Token, base64_decode, base64_encode, check_options};
    use crate::request::Query;

    #[test]
    fn base64_round_trips_every_length() {
        for length in 0..40u8 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            assert_eq!(base64_decode(&base64_encode(&bytes)), Some(bytes));
        }
        assert_eq!((base64_encode(b"ab\xff").as_str(), base64_decode("a b")), ("YWL_", None));
    }

    #[test]
    fn tokens_round_trip_and_garbage_is_refused() {
        let token = Token { v: "meta.k8s.io/v1".to_owned(), rv: 5, start: "n/a\0".to_owned(), left: Some(2) };
        assert_eq!(Token::decode(&token.encode()), Ok(token));
        assert_eq!(Token::decode("abc").unwrap_err().code, 400);
    }

    #[test]
    fn options_that_exclude_one_another_are_refused() {
        for bad in [
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch=Foo&resourceVersion=5",
            "resourceVersionMatch=Exact&resourceVersion=5&continue=x",
            "sendInitialEvents=true",
        ] {
            assert_eq!(check_options(&Query::parse(bad)).unwrap_err().code, 422, "{bad}");
        }
        assert_eq!(check_options(&Query::parse("resourceVersionMatch=NotOlderThan&resourceVersion=0")), Ok(()));
    }
}
