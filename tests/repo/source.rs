//! Rust source as the checks see it: without comments, literals and test modules, line numbers kept.

/// A path that a source names, resolved from its package's root: `crate::a::{b, c::D}` is two of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    /// The package: `crate` (also for `super` and `self`), `sidewatch_core`, `tokio`, …
    pub(crate) package: String,
    /// The segments below it.
    pub(crate) segments: Vec<String>,
    /// Where, from 1.
    pub(crate) line: usize,
}

/// The code of `text`: comments, string and character literals become blanks, lines stay where they are.
pub(crate) fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8(out).expect("only whole literals and comments become blanks")
}

/// The end of the comment or literal that begins at `at`, or `at` when none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let after_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        let mut depth = 0;
        let mut i = 0;
        while i < rest.len() {
            if rest[i..].starts_with(b"/*") {
                depth += 1;
                i += 2;
            } else if rest[i..].starts_with(b"*/") {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return at + i;
                }
            } else {
                i += 1;
            }
        }
        return bytes.len();
    }
    let prefix =
        if after_word { 0 } else { rest.iter().take(2).take_while(|byte| matches!(byte, b'b' | b'r' | b'c')).count() };
    let raw = rest[..prefix].contains(&b'r');
    let hashes = if raw { rest[prefix..].iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    if rest.get(prefix + hashes) == Some(&b'"') {
        let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
        let mut i = prefix + hashes + 1;
        while i < rest.len() {
            if !raw && rest[i] == b'\\' {
                i += 2;
            } else if rest[i..].starts_with(&close) {
                return at + i + close.len();
            } else {
                i += 1;
            }
        }
        return bytes.len();
    }
    if rest.first() == Some(&b'\'') {
        // A character, not a lifetime: closed after one character or an escape.
        if rest.get(1) == Some(&b'\\') {
            return rest[3..].iter().position(|byte| *byte == b'\'').map_or(at, |close| at + 3 + close + 1);
        }
        let text = std::str::from_utf8(&rest[1..rest.len().min(6)]);
        let width = match text {
            Ok(text) => text.chars().next().map_or(0, char::len_utf8),
            Err(error) if error.valid_up_to() > 0 => std::str::from_utf8(&rest[1..=error.valid_up_to()])
                .ok()
                .and_then(|text| text.chars().next())
                .map_or(0, char::len_utf8),
            Err(_) => 0,
        };
        if width > 0 && rest.get(1 + width) == Some(&b'\'') {
            return at + width + 2;
        }
    }
    at
}

/// `code` without its test modules: what follows `#[cfg(test)]`, up to the end of that item, becomes blanks.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let mut end = code.len();
        let mut depth = 0;
        for (at, byte) in code.bytes().enumerate().skip(start) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && matches!(byte, b'}' | b';') {
                end = at + 1;
                break;
            }
        }
        for byte in &mut out[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        from = end;
    }
    String::from_utf8(out).expect("code is ASCII where blanks replace it, or blanked whole")
}

/// Every path in `code` of the module `module` that begins with `crate`, `super`, `self` or one of `packages`.
pub(crate) fn named(code: &str, module: &str, packages: &[&str]) -> Vec<Named> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let end = word_end(bytes, at);
        let word = &code[at..end];
        let in_path = at >= 2 && &code[at - 2..at] == "::";
        let begins = at == 0 || (!in_path && bytes[at - 1] != b'$' && bytes[at - 1] != b'.');
        let is_root = matches!(word, "crate" | "super" | "self") || packages.contains(&word);
        if begins && is_root {
            let after = skip_blanks(bytes, end);
            if code[after..].starts_with("::") {
                let mut paths = Vec::new();
                tree(code, after + 2, &mut Vec::new(), &mut paths);
                found.extend(
                    paths.into_iter().map(|(segments, at)| absolute(word, module, segments, line_of(bytes, at))),
                );
            } else if packages.contains(&word) && is_use(code, at) {
                found.push(Named { package: word.to_owned(), segments: Vec::new(), line: line_of(bytes, at) });
            }
        }
        at = end;
    }
    found
}

/// Whether the word at `at` stands right behind `use`.
fn is_use(code: &str, at: usize) -> bool {
    code[..at].trim_end().ends_with("use")
}

/// Turns a path that begins with `word` in `module` into one from its package's root.
fn absolute(word: &str, module: &str, segments: Vec<String>, line: usize) -> Named {
    let mut base: Vec<String> = match word {
        "crate" => Vec::new(),
        "self" | "super" => module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        package => return Named { package: package.to_owned(), segments, line },
    };
    if word == "super" {
        base.pop();
    }
    for segment in segments {
        match segment.as_str() {
            "super" => {
                base.pop();
            }
            "self" => {}
            _ => base.push(segment),
        }
    }
    Named { package: "crate".to_owned(), segments: base, line }
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at.min(bytes.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Reads a path, or a tree of them in braces, from `at`: each with where its last word stands. Returns where it ends.
fn tree(code: &str, at: usize, base: &mut Vec<String>, paths: &mut Vec<(Vec<String>, usize)>) -> usize {
    let bytes = code.as_bytes();
    let at = skip_blanks(bytes, at);
    match bytes.get(at) {
        Some(b'{') => {
            let mut at = at + 1;
            loop {
                at = skip_blanks(bytes, at);
                match bytes.get(at) {
                    None => return at,
                    Some(b'}') => return at + 1,
                    Some(b',') => at += 1,
                    Some(_) => at = tree(code, at, base, paths).max(at + 1),
                }
            }
        }
        Some(byte) if is_word(*byte) => {
            let end = word_end(bytes, at);
            base.push(code[at..end].to_owned());
            let after = skip_blanks(bytes, end);
            let end = if code[after..].starts_with("::") {
                tree(code, after + 2, base, paths)
            } else {
                paths.push((base.clone(), at));
                end
            };
            base.pop();
            end
        }
        // `::*` and `::<T>` name what stands before them.
        _ => {
            paths.push((base.clone(), at));
            at + 1
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|byte| is_word(**byte)).count()
}

fn skip_blanks(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &str) -> Vec<String> {
        let code = without_tests(&code(text));
        named(&code, module, &["tokio"])
            .into_iter()
            .map(|named| format!("{}:{}::{}", named.line, named.package, named.segments.join("::")))
            .collect()
    }

    #[test]
    fn reads_nested_trees_relative_paths_and_paths_in_expressions() {
        let text =
            "use crate::{a::{B, c::D},\n e};\nuse super::f::G;\nfn h() { crate::i::j(); tokio::spawn(x) }\nuse tokio;";
        assert_eq!(
            paths(text, "m::n"),
            [
                "1:crate::a::B",
                "1:crate::a::c::D",
                "2:crate::e",
                "3:crate::m::f::G",
                "4:crate::i::j",
                "4:tokio::spawn",
                "5:tokio::"
            ]
        );
    }

    #[test]
    fn does_not_read_comments_literals_and_tests() {
        let text = "// crate::a\n/* /* crate::b */ crate::c */ \"crate::d\" r#\"crate::\"e\"# '\\'' 'x' fn f<'a>() {}\n#[cfg(test)]\nmod tests {\n use crate::g; }\nuse crate::h;";
        assert_eq!(paths(text, ""), ["6:crate::h"]);
    }

    #[test]
    fn keeps_lifetimes_and_wide_characters_apart() {
        assert_eq!(code("f::<'a, 'b>('é', 'x', b'y')"), "f::<'a, 'b>(    ,    , b   )");
    }
}
