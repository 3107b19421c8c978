//! One forward scan over JSON text: checks the grammar, remembers where the few fields we need lie.
//!
//! Not a parser: no tree is built and no value converted but the handful of strings that make an object's identity.
//! The grammar is checked to the last byte, so that whoever reads the body after us can parse it. A key that
//! occurs twice counts by its last occurrence, as in Go's `encoding/json` and in `serde_json::Value`.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::watch_event::{DecodeError, ManagedFields};
use crate::object::{ObjectKey, ObjectState, Uid};
use crate::resource_version::ResourceVersion;

/// Nested arrays and objects at most; what Go's `encoding/json` reads, hence all that the API server can hold. The
/// scan keeps one bit per level and does not recurse.
pub(super) const NESTING_MAX: usize = 10_000;

const STACK_WORDS: usize = NESTING_MAX.div_ceil(64);

/// A cursor in text that is known to be UTF-8.
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// One bit per open level: set for an object, clear for an array.
    stack: [u64; STACK_WORDS],
}

/// Where the content of a string lies, without the quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    start: usize,
    end: usize,
    escaped: bool,
}

/// An object of the API, or a list of them: where its parts lie.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) span: Range<usize>,
    pub(super) api_version: Option<Text>,
    pub(super) kind: Option<Text>,
    pub(super) metadata: Metadata,
}

/// The fields of `metadata` that matter; absent and `null` are the same.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) namespace: Option<Text>,
    pub(super) name: Option<Text>,
    pub(super) uid: Option<Text>,
    pub(super) resource_version: Option<Text>,
    pub(super) continue_token: Option<Text>,
    pub(super) annotations: Option<Range<usize>>,
    /// What to cut so that no `managedFields` is left and the commas are right; more than one only if the key repeats.
    managed_fields: Vec<Range<usize>>,
}

impl<'a> Scanner<'a> {
    /// A scanner at the first byte.
    ///
    /// # Errors
    /// When the bytes are not UTF-8.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Self { text, at: 0, depth: 0, stack: [0; STACK_WORDS] }),
            Err(error) => Err(DecodeError { what: "invalid UTF-8", offset: error.valid_up_to() }),
        }
    }

    /// Checks that only white space follows.
    pub(super) fn end(&mut self) -> Result<(), DecodeError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("text after the end")),
        }
    }

    /// The next byte that is not white space, not consumed.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    pub(super) fn error(&self, what: &'static str) -> DecodeError {
        DecodeError { what, offset: self.at }
    }

    /// Reads `{…}`, calling `member` after each `key :`; it must consume the value.
    pub(super) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, Text) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        self.expect(b'{', "an object")?;
        self.push(true)?;
        if self.peek() == Some(b'}') {
            self.at += 1;
        } else {
            loop {
                let key = self.key()?;
                member(self, key)?;
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b'}') => break self.at += 1,
                    _ => return Err(self.error("a comma or the end of an object")),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads `[…]`, calling `element` at each element; it must consume it.
    pub(super) fn elements(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        self.expect(b'[', "an array")?;
        self.push(false)?;
        if self.peek() == Some(b']') {
            self.at += 1;
        } else {
            loop {
                element(self)?;
                match self.peek() {
                    Some(b',') => self.at += 1,
                    Some(b']') => break self.at += 1,
                    _ => return Err(self.error("a comma or the end of an array")),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads an object of the API. `other` is asked about every member but `apiVersion`, `kind` and `metadata`, and
    /// must consume its value.
    pub(super) fn object(
        &mut self,
        mut other: impl FnMut(&mut Self, Text) -> Result<(), DecodeError>,
    ) -> Result<Object, DecodeError> {
        self.peek();
        let start = self.at;
        let mut object = Object::default();
        self.members(|scanner, key| {
            match scanner.known(key, &["apiVersion", "kind", "metadata"]) {
                Some(0) => object.api_version = scanner.string_or_null()?,
                Some(1) => object.kind = scanner.string_or_null()?,
                Some(_) => object.metadata = scanner.metadata()?,
                None => other(scanner, key)?,
            }
            Ok(())
        })?;
        object.span = start..self.at;
        Ok(object)
    }

    fn metadata(&mut self) -> Result<Metadata, DecodeError> {
        let mut found = Metadata::default();
        if self.peek() == Some(b'n') {
            self.skip_value()?;
            return Ok(found);
        }
        // Where the member before ended, if any member is kept so far: a cut takes the comma before it along, or, in
        // front of the first kept member, the comma after it.
        let mut kept_before = None;
        let mut cut_to_next = None;
        self.members(|scanner, key| {
            let start = key.start - 1;
            if let Some(from) = cut_to_next.take() {
                found.managed_fields.push(from..start);
            }
            const KEYS: [&str; 7] =
                ["namespace", "name", "uid", "resourceVersion", "continue", "annotations", "managedFields"];
            let known = scanner.known(key, &KEYS);
            match known {
                Some(0) => found.namespace = scanner.string_or_null()?,
                Some(1) => found.name = scanner.string_or_null()?,
                Some(2) => found.uid = scanner.string_or_null()?,
                Some(3) => found.resource_version = scanner.string_or_null()?,
                Some(4) => found.continue_token = scanner.string_or_null()?,
                Some(5) => {
                    scanner.peek();
                    let start = scanner.at;
                    scanner.skip_value()?;
                    found.annotations = Some(start..scanner.at);
                }
                Some(_) | None => scanner.skip_value()?,
            }
            let end = scanner.at;
            match (known, kept_before) {
                (Some(6), Some(before)) => {
                    found.managed_fields.push(before..end);
                    kept_before = Some(end);
                }
                (Some(6), None) => cut_to_next = Some(start),
                _ => kept_before = Some(end),
            }
            Ok(())
        })?;
        if let Some(from) = cut_to_next {
            found.managed_fields.push(from..self.at - 1);
        }
        Ok(found)
    }

    /// Checks one value of any kind and goes past it.
    pub(super) fn skip_value(&mut self) -> Result<(), DecodeError> {
        let outside = self.depth;
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.push(true)?;
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                    self.at += 1;
                    self.depth -= 1;
                }
                Some(b'[') => {
                    self.at += 1;
                    self.push(false)?;
                    if self.peek() != Some(b']') {
                        continue;
                    }
                    self.at += 1;
                    self.depth -= 1;
                }
                Some(b'"') => drop(self.string()?),
                Some(b't') => self.literal("true")?,
                Some(b'f') => self.literal("false")?,
                Some(b'n') => self.literal("null")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => return Err(self.error("a value")),
            }
            // A value has ended: close what ends with it, up to the next value.
            loop {
                if self.depth == outside {
                    return Ok(());
                }
                let in_object = self.in_object();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        if in_object {
                            self.key()?;
                        }
                        break;
                    }
                    Some(b'}') if in_object => self.at += 1,
                    Some(b']') if !in_object => self.at += 1,
                    _ => return Err(self.error("a comma or the end of what is open")),
                }
                self.depth -= 1;
            }
        }
    }

    /// Reads a string, or `null` as nothing.
    pub(super) fn string_or_null(&mut self) -> Result<Option<Text>, DecodeError> {
        match self.peek() {
            Some(b'"') => self.string().map(Some),
            Some(b'n') => self.literal("null").map(|()| None),
            _ => Err(self.error("a string")),
        }
    }

    /// Which of `keys` this is.
    pub(super) fn known(&self, key: Text, keys: &[&str]) -> Option<usize> {
        if !key.escaped {
            let raw = &self.text[key.start..key.end];
            return keys.iter().position(|k| *k == raw);
        }
        let decoded = self.decode(key).ok()?;
        keys.iter().position(|k| *k == decoded)
    }

    /// The string's value.
    ///
    /// # Errors
    /// When an escape names half a character.
    pub(super) fn decode(&self, text: Text) -> Result<Cow<'a, str>, DecodeError> {
        if !text.escaped {
            return Ok(Cow::Borrowed(&self.text[text.start..text.end]));
        }
        let quoted = &self.text[text.start - 1..text.end + 1];
        serde_json::from_str(quoted)
            .map(Cow::Owned)
            .map_err(|_| DecodeError { what: "an escape that is no character", offset: text.start })
    }

    /// Whether the object at `span`, already checked, has the member `key` with the string `value`.
    pub(super) fn has_member(&self, span: Range<usize>, key: &str, value: &str) -> bool {
        let mut inner = Scanner { text: &self.text[..span.end], at: span.start, depth: 0, stack: [0; STACK_WORDS] };
        let mut found = false;
        let read = inner.members(|scanner, name| {
            if scanner.known(name, &[key]).is_some() && scanner.peek() == Some(b'"') {
                let text = scanner.string()?;
                found = scanner.known(text, &[value]).is_some();
                return Ok(());
            }
            scanner.skip_value()
        });
        read.is_ok() && found
    }

    /// The object as a state of its own, with an exact copy of its body: a slice would keep the whole chunk or page
    /// in memory for as long as this one object lives. `type_meta` (`apiVersion`, `kind`) is put in front where absent.
    pub(super) fn state(
        &self,
        object: &Object,
        managed_fields: ManagedFields,
        type_meta: Option<(&str, &str)>,
    ) -> Result<ObjectState, DecodeError> {
        let offset = object.span.start;
        let metadata = &object.metadata;
        let field = |text: Option<Text>, what| match text {
            Some(text) => match self.decode(text)? {
                empty if empty.is_empty() => Err(DecodeError { what, offset }),
                value => Ok(value),
            },
            None => Err(DecodeError { what, offset }),
        };
        let namespace = metadata.namespace.map_or(Ok(Cow::Borrowed("")), |text| self.decode(text))?;
        let name = field(metadata.name, "an object without metadata.name")?;
        let uid = field(metadata.uid, "an object without metadata.uid")?;
        let version = field(metadata.resource_version, "an object without metadata.resourceVersion")?;
        Ok(ObjectState {
            key: ObjectKey::new(&namespace, &name),
            uid: Uid::from(&*uid),
            resource_version: ResourceVersion::parse(&version),
            body: self.body(object, managed_fields, type_meta),
        })
    }

    fn body(&self, object: &Object, managed_fields: ManagedFields, type_meta: Option<(&str, &str)>) -> Bytes {
        let bytes = self.text.as_bytes();
        let cuts: &[Range<usize>] = match managed_fields {
            ManagedFields::Drop => &object.metadata.managed_fields,
            ManagedFields::Keep => &[],
        };
        let head = type_meta.map_or(String::new(), |(api_version, kind)| {
            let mut head = String::new();
            for (name, value, absent) in
                [("kind", kind, object.kind.is_none()), ("apiVersion", api_version, object.api_version.is_none())]
            {
                if absent && !value.is_empty() {
                    head.push_str(if head.is_empty() { "{\"" } else { ",\"" });
                    head.push_str(name);
                    head.push_str("\":");
                    // A string always serializes.
                    head.push_str(&serde_json::Value::from(value).to_string());
                }
            }
            head
        });
        let cut: usize = cuts.iter().map(ExactSizeIterator::len).sum();
        let mut body = BytesMut::with_capacity(object.span.len() - cut + head.len());
        let mut from = object.span.start;
        if !head.is_empty() {
            body.put_slice(head.as_bytes());
            body.put_u8(b',');
            // The object has a metadata member, so something follows its brace.
            from += 1;
        }
        for cut in cuts {
            body.put_slice(&bytes[from..cut.start]);
            from = cut.end;
        }
        body.put_slice(&bytes[from..object.span.end]);
        body.freeze()
    }

    fn key(&mut self) -> Result<Text, DecodeError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("a key"));
        }
        let key = self.string()?;
        self.expect(b':', "a colon")?;
        Ok(key)
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), DecodeError> {
        if self.peek() != Some(byte) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(())
    }

    fn push(&mut self, object: bool) -> Result<(), DecodeError> {
        if self.depth == NESTING_MAX {
            return Err(self.error("nesting too deep"));
        }
        let (word, bit) = (self.depth / 64, 1_u64 << (self.depth % 64));
        self.stack[word] = if object { self.stack[word] | bit } else { self.stack[word] & !bit };
        self.depth += 1;
        Ok(())
    }

    fn in_object(&self) -> bool {
        let level = self.depth - 1;
        self.stack[level / 64] >> (level % 64) & 1 == 1
    }

    fn literal(&mut self, word: &str) -> Result<(), DecodeError> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Goes past a string, from its opening quote.
    fn string(&mut self) -> Result<Text, DecodeError> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            self.at = special_byte(bytes, self.at);
            match bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.error("a control character in a string")),
                None => return Err(self.error("an end of the string")),
            }
        }
        let end = self.at;
        self.at += 1;
        Ok(Text { start, end, escaped })
    }

    fn escape(&mut self) -> Result<(), DecodeError> {
        let bytes = self.text.as_bytes();
        match bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') if bytes.get(self.at + 2..self.at + 6).is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)) => {
                self.at += 6;
            }
            _ => return Err(self.error("an escape")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), DecodeError> {
        let bytes = self.text.as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        if bytes[self.at] == b'-' {
            self.at += 1;
        }
        match bytes.get(self.at) {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.at += digits(self.at),
            _ => return Err(self.error("a digit")),
        }
        if bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.at += self.some(digits(self.at))?;
        }
        if let Some(b'e' | b'E') = bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = bytes.get(self.at) {
                self.at += 1;
            }
            self.at += self.some(digits(self.at))?;
        }
        Ok(())
    }

    fn some(&self, digits: usize) -> Result<usize, DecodeError> {
        if digits == 0 { Err(self.error("a digit")) } else { Ok(digits) }
    }
}

/// Where the next quote, backslash or control character is, from `at`; the length when there is none.
fn special_byte(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    // Eight bytes at a time. A borrow can mark bytes above the first hit by mistake, never below it.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let hits = control | zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\')));
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    let rest = bytes[at..].iter().take_while(|b| !matches!(b, b'"' | b'\\' | 0..0x20)).count();
    at + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &str) -> bool {
        Scanner::new(text.as_bytes()).and_then(|mut s| s.skip_value().and_then(|()| s.end())).is_ok()
    }

    #[test]
    fn grammar_agrees_with_serde_json() {
        let texts = [
            "{}",
            "[]",
            "[1]",
            "{\"a\":[{},{\"b\":null}]}",
            " [ 1 , 2 ] ",
            "-0.5e+10",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "[1,]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "[1 2]",
            "[}",
            "{]",
            "tru",
            "nulll",
            "\"\\u12\"",
            "\"\\u12zz\"",
            "\"\\ud800\"",
            "\"\\q\"",
            "\"\n\"",
            "\"abcdefghijk\u{1}\"",
            "\"abc",
            "\"abcdefgh\\",
            "",
            " ",
            "\"\u{7f}é€😀 long enough to be scanned by words\"",
            "{\"a\":1}x",
            "{1:2}",
            "[[[[]]]",
            "[]]",
            "0",
            "-1E5",
        ];
        for text in texts {
            let expected = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            assert_eq!(accepts(text), expected, "{text:?}");
        }
    }

    #[test]
    fn special_bytes_are_found_at_every_offset() {
        for special in [b'"', b'\\', 0, 0x1f] {
            for at in 0..40 {
                let mut bytes = vec![b'!'; 40];
                bytes[at] = special;
                bytes[at / 2] = if at > 1 { 0xff } else { bytes[at / 2] };
                assert_eq!(special_byte(&bytes, 0), at, "{special} at {at}");
            }
        }
    }

    #[test]
    fn nesting_is_bounded_without_recursion() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(accepts(&nested(NESTING_MAX)));
        assert!(!accepts(&nested(NESTING_MAX + 1)));
    }
}
