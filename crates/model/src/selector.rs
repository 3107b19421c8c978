//! Label and field selectors, as the query of a list or a watch gives them.

use crate::object::State;
use crate::resource::{Origin, Resource};
use crate::status::Failure;

/// What an object must fulfil to be shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, Comparison, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
}

impl Selector {
    /// Parses both selectors for a type. Empty texts select everything.
    ///
    /// # Errors
    /// 400 BadRequest, worded like the server's.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Selector, Failure> {
        let refuse = |why: String| Failure::bad_request(format!("unable to parse requirement: {why}"));
        Ok(Selector {
            labels: Parser::new(labels).requirements().map_err(refuse)?,
            fields: parse_fields(resource, fields)?,
        })
    }

    /// Tells whether nothing is excluded.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Tells whether a state is selected.
    pub fn matches(&self, state: &State) -> bool {
        let label = |requirement: &Requirement| {
            let value = state.labels.get(&requirement.key);
            match &requirement.test {
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            }
        };
        let field = |(path, comparison, wanted): &(String, Comparison, String)| {
            let found = state.fields.iter().find(|(known, _)| known == path).map_or("", |(_, value)| value.as_str());
            (found == wanted) == (*comparison == Comparison::Equal)
        };
        self.labels.iter().all(label) && self.fields.iter().all(field)
    }
}

fn parse_fields(resource: &Resource, text: &str) -> Result<Vec<(String, Comparison, String)>, Failure> {
    let mut fields = Vec::new();
    for term in text.split(',').filter(|term| !term.is_empty()) {
        let split = ["!=", "==", "="].into_iter().find_map(|sign| Some((term.split_once(sign)?, sign)));
        let Some(((path, value), sign)) = split else {
            return Err(Failure::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'")));
        };
        let known = resource.field_paths();
        if !known.contains(&path) {
            return Err(Failure::bad_request(match resource.origin {
                Origin::Custom => format!("field label not supported: {path}"),
                Origin::BuiltIn => format!(
                    "{path:?} is not a known field selector: only {}",
                    known.iter().map(|path| format!("{path:?}")).collect::<Vec<_>>().join(", ")
                ),
            }));
        }
        let comparison = if sign == "!=" { Comparison::Unequal } else { Comparison::Equal };
        fields.push((path.to_owned(), comparison, value.to_owned()));
    }
    Ok(fields)
}

/// A reader of the label selector grammar: `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b)`.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { rest: text }
    }

    fn requirements(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        if self.peek().is_empty() {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.next() {
                "" => return Ok(requirements),
                "," => {}
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.peek() == "!" {
            self.next();
            return Ok(Requirement { key: self.word()?, test: Test::Absent });
        }
        let key = self.word()?;
        let test = match self.peek() {
            "" | "," => Test::Exists,
            "=" | "==" => {
                self.next();
                Test::In(vec![self.value()?])
            }
            "!=" => {
                self.next();
                Test::NotIn(vec![self.value()?])
            }
            "in" => {
                self.next();
                Test::In(self.values()?)
            }
            "notin" => {
                self.next();
                Test::NotIn(self.values()?)
            }
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=")),
        };
        Ok(Requirement { key, test })
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            "(" => {}
            other => return Err(format!("found '{other}', expected: '('")),
        }
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            match self.next() {
                ")" => return Ok(values),
                "," => {}
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }

    /// Reads a value, which may be empty.
    fn value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), "" | "," | ")") { Ok(String::new()) } else { self.word() }
    }

    fn word(&mut self) -> Result<String, String> {
        let token = self.next();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if token.is_empty() || !token.chars().all(plain) {
            return Err(format!("found '{token}', expected: identifier"));
        }
        Ok(token.to_owned())
    }

    fn peek(&self) -> &'a str {
        Parser { rest: self.rest }.next()
    }

    /// Cuts the next token off; empty at the end.
    fn next(&mut self) -> &'a str {
        let text = self.rest.trim_start();
        let sign = ["==", "!=", "=", "!", "(", ")", ","].into_iter().find(|sign| text.starts_with(sign));
        let end = sign.map_or_else(
            || text.find(|c: char| c.is_whitespace() || "=!(),".contains(c)).unwrap_or(text.len()),
            str::len,
        );
        let (token, rest) = text.split_at(end);
        self.rest = rest;
        token
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Selector;
    use crate::object::State;
    use crate::resource::Resource;

    fn resource(plural: &str) -> Resource {
        Resource::built_in().into_iter().find(|resource| resource.plural == plural).unwrap()
    }

    fn selects(labels: &str, fields: &str) -> bool {
        let pod = resource("pods");
        let value = json!({"metadata": {"name": "p", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}});
        let state = State::encode(&pod, value.as_object().unwrap().clone(), 1);
        Selector::parse(&pod, labels, fields).unwrap().matches(&state)
    }

    #[test]
    fn labels_select_by_every_operator() {
        for yes in
            ["", "app", "app=web", "app == web,tier", "!gone", "app!=x", "gone!=x", "app in (x, web)", "gone notin (x)"]
        {
            assert!(selects(yes, ""), "{yes}");
        }
        for no in ["gone", "app=x", "!app", "app!=web", "app in (x,y)", "app notin (web)", "app=web,tier=back", "app="]
        {
            assert!(!selects(no, ""), "{no}");
        }
    }

    #[test]
    fn fields_select_by_equality() {
        assert!(selects("", "metadata.name=p,status.phase!=Pending,spec.nodeName==node-1,spec.hostNetwork=false"));
        assert!(!selects("", "metadata.namespace=other"));
    }

    #[test]
    fn bad_selectors_are_refused_in_the_words_of_the_server() {
        let message =
            |labels: &str, fields: &str| Selector::parse(&resource("configmaps"), labels, fields).unwrap_err().message;
        assert_eq!(message("a===b", ""), "unable to parse requirement: found '=', expected: identifier");
        assert_eq!(message("", "foo"), "invalid selector: 'foo'; can't understand 'foo'");
        let known = r#""foo" is not a known field selector: only "metadata.name", "metadata.namespace""#;
        assert_eq!(message("", "foo=bar"), known);
        for bad in ["a in b", "a b", "a in (b", ",a", "a,"] {
            assert_eq!(Selector::parse(&resource("pods"), bad, "").unwrap_err().code, 400, "{bad}");
        }
    }
}
