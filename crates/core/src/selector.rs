//! Label selectors, parsed and evaluated, and the syntax of field selectors.
//!
//! The grammar is the one `kubectl -l` takes: equality (`a=b`, `a==b`, `a!=b`), sets (`a in (b,c)`, `a notin (b)`),
//! presence (`a`, `!a`) and integers (`a>1`, `a<9`), joined by commas that mean "and". Field selectors are only
//! checked: what fields exist is the API server's to know.

use std::fmt;

/// Longest name of a label, without its prefix, and longest value (Kubernetes `LabelValueMaxLength`).
const LABEL_NAME_BYTES_MAX: usize = 63;
/// Longest prefix of a label's key (RFC 1123 subdomain).
const LABEL_PREFIX_BYTES_MAX: usize = 253;

/// A conjunction of requirements on labels; without any it matches everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// What one term asks of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    GreaterThan(i64),
    LessThan(i64),
}

/// Why a selector is refused, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at character {position}: {rule}")]
pub struct SelectorError {
    /// Counted from 1, in characters.
    pub position: usize,
    /// What was expected there.
    pub rule: String,
}

impl LabelSelector {
    /// Parses the text of a selector; blank text matches everything.
    ///
    /// # Errors
    /// When it is not a label selector that the API server would take: position and rule of the first fault.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: tokens(text), next: 0 };
        let mut requirements = Vec::new();
        if parser.peek().kind == Kind::End {
            return Ok(Self { requirements });
        }
        loop {
            requirements.push(parser.requirement()?);
            let token = parser.take();
            match token.kind {
                Kind::End => return Ok(Self { requirements }),
                Kind::Comma => {}
                _ => return Err(token.refuse("a comma or the end must follow a requirement")),
            }
        }
    }

    /// Whether an object with these labels is selected; `get` answers the value of a key.
    pub fn matches<'l>(&self, get: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.test.accepts(get(&requirement.key)))
    }

    /// Whether there is no requirement, so that everything matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Test {
    /// A key that is not there satisfies `!=` and `notin`, as in Kubernetes.
    fn accepts(&self, value: Option<&str>) -> bool {
        match self {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Test::GreaterThan(bound) => integer(value).is_some_and(|value| value > *bound),
            Test::LessThan(bound) => integer(value).is_some_and(|value| value < *bound),
        }
    }
}

fn integer(value: Option<&str>) -> Option<i64> {
    value.and_then(|value| value.parse().ok())
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match test {
                Test::Exists => write!(f, "{key}")?,
                Test::Absent => write!(f, "!{key}")?,
                Test::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Test::GreaterThan(bound) => write!(f, "{key}>{bound}")?,
                Test::LessThan(bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Word,
    Comma,
    Not,
    Equal,
    NotEqual,
    Open,
    Close,
    Greater,
    Less,
    End,
}

#[derive(Clone, Copy, Debug)]
struct Token<'t> {
    kind: Kind,
    text: &'t str,
    /// In characters, from 1.
    position: usize,
}

impl Token<'_> {
    fn refuse(&self, rule: &str) -> SelectorError {
        let rule = match self.kind {
            Kind::End => format!("{rule}; the selector ends here"),
            _ => format!("{rule}; found {:?}", self.text),
        };
        SelectorError { position: self.position, rule }
    }
}

/// Cuts the text into tokens; the last one is [`Kind::End`].
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut characters = text.char_indices().enumerate().peekable();
    while let Some((index, (start, character))) = characters.next() {
        let followed_by_equal = characters.peek().is_some_and(|(_, (_, next))| *next == '=');
        let (kind, end) = match character {
            blank if blank.is_ascii_whitespace() => continue,
            ',' => (Kind::Comma, start + 1),
            '(' => (Kind::Open, start + 1),
            ')' => (Kind::Close, start + 1),
            '>' => (Kind::Greater, start + 1),
            '<' => (Kind::Less, start + 1),
            '!' if followed_by_equal => (Kind::NotEqual, start + 2),
            '!' => (Kind::Not, start + 1),
            '=' if followed_by_equal => (Kind::Equal, start + 2),
            '=' => (Kind::Equal, start + 1),
            _ => {
                let length = text[start..].find(|c: char| c.is_ascii_whitespace() || ",()<>!=".contains(c));
                (Kind::Word, length.map_or(text.len(), |length| start + length))
            }
        };
        while characters.next_if(|(_, (offset, _))| *offset < end).is_some() {}
        found.push(Token { kind, text: &text[start..end], position: index + 1 });
    }
    found.push(Token { kind: Kind::End, text: "", position: text.chars().count() + 1 });
    found
}

struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    next: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek().kind == Kind::Not;
        if negated {
            self.take();
        }
        let token = self.take();
        if token.kind != Kind::Word {
            return Err(token.refuse("a label key must stand here"));
        }
        check_key(token)?;
        let test = match negated {
            true => Test::Absent,
            false => self.test()?,
        };
        Ok(Requirement { key: token.text.to_owned(), test })
    }

    fn test(&mut self) -> Result<Test, SelectorError> {
        if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            return Ok(Test::Exists);
        }
        let operator = self.take();
        match (operator.kind, operator.text) {
            (Kind::Equal, _) => Ok(Test::In(vec![self.value()?])),
            (Kind::NotEqual, _) => Ok(Test::NotIn(vec![self.value()?])),
            (Kind::Greater, _) => Ok(Test::GreaterThan(self.bound()?)),
            (Kind::Less, _) => Ok(Test::LessThan(self.bound()?)),
            (Kind::Word, "in") => Ok(Test::In(self.values()?)),
            (Kind::Word, "notin") => Ok(Test::NotIn(self.values()?)),
            _ => Err(operator.refuse("an operator (=, ==, !=, in, notin, >, <) must follow the key")),
        }
    }

    /// One value, which may be empty: `a=` asks for the empty value.
    fn value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            return Ok(String::new());
        }
        let token = self.take();
        if token.kind != Kind::Word {
            return Err(token.refuse("a label value must stand here"));
        }
        check_value(token)?;
        Ok(token.text.to_owned())
    }

    fn bound(&mut self) -> Result<i64, SelectorError> {
        let token = self.peek();
        self.value()?.parse().map_err(|_| token.refuse("> and < compare with an integer"))
    }

    /// `(a,b)`; values between commas may be empty, but there must be one.
    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        let open = self.take();
        if open.kind != Kind::Open {
            return Err(open.refuse("values in parentheses must follow in and notin"));
        }
        if self.peek().kind == Kind::Close {
            return Err(self.peek().refuse("in and notin need at least one value"));
        }
        let mut values = Vec::new();
        loop {
            values.push(if self.peek().kind == Kind::Close { String::new() } else { self.value()? });
            let token = self.take();
            match token.kind {
                Kind::Comma => {}
                Kind::Close => return Ok(values),
                _ => return Err(token.refuse("a comma or a closing parenthesis must follow a value")),
            }
        }
    }
}

fn check_key(token: Token<'_>) -> Result<(), SelectorError> {
    let (prefix, name) = match token.text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, token.text),
    };
    if let Some(prefix) = prefix
        && (prefix.len() > LABEL_PREFIX_BYTES_MAX || !prefix.split('.').all(is_dns_label))
    {
        return Err(token.refuse(
            "the prefix of a label key is a DNS subdomain of at most 253 characters (lower case letters, digits, - and .)",
        ));
    }
    if name.is_empty() || !is_label_text(name) {
        return Err(token.refuse(
            "the name of a label key has 1 to 63 letters, digits, -, _ and ., and begins and ends with a letter or digit",
        ));
    }
    Ok(())
}

fn check_value(token: Token<'_>) -> Result<(), SelectorError> {
    if is_label_text(token.text) {
        return Ok(());
    }
    Err(token
        .refuse("a label value has at most 63 letters, digits, -, _ and ., and begins and ends with a letter or digit"))
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= LABEL_NAME_BYTES_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Whether `text` is an RFC 1123 label: 1 to 63 lower case letters, digits and `-`, not `-` at either end.
///
/// Namespaces, and each part of a resource's or group's name, are such labels.
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=LABEL_NAME_BYTES_MAX).contains(&bytes.len())
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
        && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
}

/// A field selector whose syntax was checked: `path=value`, `path==value` or `path!=value`, joined by commas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FieldSelector {
    /// Path and value of each term, the value without escapes.
    terms: Vec<(String, String)>,
}

impl FieldSelector {
    /// Checks the text of a field selector; blank text selects everything. A backslash escapes `,`, `=` and itself.
    ///
    /// # Errors
    /// When it is not a field selector: position and rule of the first fault.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        if text.trim().is_empty() {
            return Ok(Self { terms });
        }
        let mut position = 1;
        for term in split_unescaped(text) {
            terms.push(field_term(term, position)?);
            position += term.chars().count() + 1;
        }
        Ok(Self { terms })
    }

    /// The paths that are selected on, in the order written.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|(path, _)| path.as_str())
    }
}

/// The pieces between commas that no backslash escapes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                pieces.push(&text[start..offset]);
                start = offset + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

fn field_term(term: &str, position: usize) -> Result<(String, String), SelectorError> {
    let refuse = |offset: usize, rule: &str| SelectorError {
        position: position + term[..offset].chars().count(),
        rule: rule.to_owned(),
    };
    let Some(operator) = term.find(['=', '!']) else {
        return Err(refuse(0, "each term must be path=value, path==value or path!=value"));
    };
    let length = match &term.as_bytes()[operator..] {
        [b'=' | b'!', b'=', ..] => 2,
        [b'=', ..] => 1,
        _ => return Err(refuse(operator, "the operators are =, == and !=")),
    };
    let path = term[..operator].trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !path.split('.').all(|part| !part.is_empty() && part.bytes().all(plain)) {
        return Err(refuse(0, "the path of a field has names joined by dots, such as metadata.name or spec.nodeName"));
    }
    let mut value = String::new();
    let mut characters = term[operator + length..].char_indices();
    while let Some((offset, character)) = characters.next() {
        let at = operator + length + offset;
        match character {
            '=' => return Err(refuse(at, "an = inside a value must be written \\=")),
            '\\' => match characters.next() {
                Some((_, escaped @ (',' | '=' | '\\'))) => value.push(escaped),
                _ => return Err(refuse(at, "a backslash must stand before a comma, an = or a backslash")),
            },
            _ => value.push(character),
        }
    }
    Ok((path.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        LabelSelector::parse(selector).unwrap().matches(|key| labels.get(key).copied())
    }

    #[test]
    fn selects_as_kubernetes_does() {
        let web = [("app", "web"), ("tier", "front"), ("example.com/size", "12")];
        for yes in [
            "",
            "  ",
            "app",
            "app=web",
            "app==web",
            "app = web , tier",
            "!missing",
            "! missing",
            "app!=db",
            "missing!=x",
            "app in (web,db)",
            "app in ( web , db )",
            "app notin (db)",
            "missing notin (a)",
            "example.com/size>11",
            "example.com/size<13",
            "tier in (,front)",
        ] {
            assert!(matches(yes, &web), "{yes:?} must select");
        }
        for no in
            ["missing", "!app", "app=db", "app!=web", "app=", "app in (db)", "app notin (web)", "app>1", "missing<1"]
        {
            assert!(!matches(no, &web), "{no:?} must not select");
        }
        assert!(
            matches("in=a,notin in (in)", &[("in", "a"), ("notin", "in")]),
            "operators are keys where a key stands"
        );
        assert!(matches("empty=", &[("empty", "")]));
    }

    #[test]
    fn errors_name_position_and_rule() {
        let long = "a".repeat(64);
        for (text, position, rule) in [
            (",a", 1, "a label key"),
            ("a,", 3, "a label key"),
            ("a=b c", 5, "a comma or the end"),
            ("a in b", 6, "parentheses"),
            ("a in ()", 7, "at least one value"),
            ("a in (b", 8, "closing parenthesis"),
            ("a is (b)", 3, "an operator"),
            ("a=b,-c=d", 5, "the name of a label key"),
            ("Example.com/a", 1, "DNS subdomain"),
            ("/a", 1, "DNS subdomain"),
            ("a/", 1, "the name of a label key"),
            ("a=_b", 3, "a label value"),
            ("a>x", 3, "an integer"),
            ("a>", 3, "an integer"),
            ("ä=b", 1, "the name of a label key"),
            ("a=ä,b", 3, "a label value"),
            ("a==b=c", 5, "a comma or the end"),
            (long.as_str(), 1, "1 to 63"),
        ] {
            let error = LabelSelector::parse(text).expect_err(text);
            assert_eq!(error.position, position, "{text:?}: {error}");
            assert!(error.rule.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn field_selectors_are_checked() {
        let selector = FieldSelector::parse("metadata.name=web, spec.nodeName!=n\\,1,status.phase==Running").unwrap();
        assert_eq!(selector.paths().collect::<Vec<_>>(), ["metadata.name", "spec.nodeName", "status.phase"]);
        assert_eq!(selector.terms[1].1, "n,1");
        assert_eq!(FieldSelector::parse(" ").unwrap(), FieldSelector::default());
        for (text, position) in
            [("a", 1), ("a=b,", 5), ("a=b,c", 5), ("=b", 1), ("a..b=c", 1), ("a!b", 2), ("a=b=c", 4), ("a=b\\c", 4)]
        {
            assert_eq!(FieldSelector::parse(text).expect_err(text).position, position, "{text:?}");
        }
    }

    fn key() -> impl Strategy<Value = String> {
        "([a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?(\\.[a-z]{1,3}){0,2}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,5}[A-Za-z0-9])?"
    }

    fn value() -> impl Strategy<Value = String> {
        "([A-Za-z0-9]([-A-Za-z0-9_.]{0,5}[A-Za-z0-9])?)?"
    }

    fn requirement() -> impl Strategy<Value = Requirement> {
        let test = prop_oneof![
            Just(Test::Exists),
            Just(Test::Absent),
            proptest::collection::vec(value(), 1..4).prop_map(Test::In),
            proptest::collection::vec(value(), 1..4).prop_map(Test::NotIn),
            (0..i64::MAX).prop_map(Test::GreaterThan),
            (0..i64::MAX).prop_map(Test::LessThan),
        ];
        (key(), test).prop_map(|(key, test)| Requirement { key, test })
    }

    /// A lone empty value in parentheses is written with its comma: `()` is refused.
    fn written(selector: &LabelSelector) -> String {
        selector.to_string().replace("()", "(,)")
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(requirements in proptest::collection::vec(requirement(), 0..4), blanks in 0usize..3) {
            let selector = LabelSelector { requirements };
            let spaced = written(&selector).replace(',', &format!("{0},{0}", " ".repeat(blanks)));
            let read = LabelSelector::parse(&spaced).unwrap();
            for (written, read) in selector.requirements.iter().zip(&read.requirements) {
                prop_assert_eq!(&written.key, &read.key);
                for candidate in [None, Some(""), Some("a"), Some("5")] {
                    prop_assert_eq!(written.test.accepts(candidate), read.test.accepts(candidate));
                }
            }
            prop_assert_eq!(selector.requirements.len(), read.requirements.len());
        }

        #[test]
        fn negation_is_the_opposite(key in key(), value in "[a-z]{1,3}", label in proptest::option::of("[a-z]{1,3}")) {
            let decide = |text: String| LabelSelector::parse(&text).unwrap().matches(|_| label.as_deref());
            prop_assert_ne!(decide(format!("{key}={value}")), decide(format!("{key}!={value}")));
            prop_assert_ne!(decide(format!("{key} in ({value},z)")), decide(format!("{key} notin ({value},z)")));
            prop_assert_ne!(decide(key.clone()), decide(format!("!{key}")));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,40}", punctuation in "[a(),=!<> /.in-]{0,20}") {
            for text in [text, punctuation] {
                if let Err(error) = LabelSelector::parse(&text) {
                    prop_assert!((1..=text.chars().count() + 1).contains(&error.position));
                }
                if let Err(error) = FieldSelector::parse(&text) {
                    prop_assert!((1..=text.chars().count() + 1).contains(&error.position));
                }
            }
        }
    }
}
