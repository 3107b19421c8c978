//! The API may only grow: every name, number and type that ever shipped is still there (`testdata/api.txt`).

use std::collections::BTreeSet;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::{assert_none, read, root};

/// The compiled API, as reflection serves it.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sidewatch.v1.bin"));
const GOLDEN: &str = "tests/repo/testdata/api.txt";

/// One line for each promise that the API makes.
fn promises(file: &FileDescriptorProto) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for service in &file.service {
        for method in &service.method {
            let stream = |streams: bool| if streams { "stream " } else { "" };
            lines.insert(format!(
                "rpc {}/{}({}{}) returns ({}{})",
                service.name(),
                method.name(),
                stream(method.client_streaming()),
                method.input_type(),
                stream(method.server_streaming()),
                method.output_type()
            ));
        }
    }
    for message in &file.message_type {
        message_promises(message, message.name(), &mut lines);
    }
    for group in &file.enum_type {
        enum_promises(group, group.name(), &mut lines);
    }
    lines
}

fn message_promises(message: &DescriptorProto, name: &str, lines: &mut BTreeSet<String>) {
    lines.insert(format!("message {name}"));
    for field in &message.field {
        let kind = match field.r#type() {
            Type::Message | Type::Enum => field.type_name().to_owned(),
            scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        };
        let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
        let choice = field.oneof_index.and_then(|at| message.oneof_decl.get(at as usize)).map_or("", |one| one.name());
        let choice = if choice.is_empty() { String::new() } else { format!(" in {choice}") };
        lines.insert(format!("field {name}.{} = {}: {repeated}{kind}{choice}", field.name(), field.number()));
    }
    for nested in &message.nested_type {
        message_promises(nested, &format!("{name}.{}", nested.name()), lines);
    }
    for group in &message.enum_type {
        enum_promises(group, &format!("{name}.{}", group.name()), lines);
    }
}

fn enum_promises(group: &EnumDescriptorProto, name: &str, lines: &mut BTreeSet<String>) {
    lines.insert(format!("enum {name}"));
    for value in &group.value {
        lines.insert(format!("value {name}.{} = {}", value.name(), value.number()));
    }
}

/// What `now` no longer promises, and what it promises besides.
fn compare(golden: &BTreeSet<String>, now: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
    (golden.difference(now).cloned().collect(), now.difference(golden).cloned().collect())
}

/// The project's own file out of the set.
fn api() -> FileDescriptorProto {
    let set = FileDescriptorSet::decode(DESCRIPTORS).expect("build.rs wrote it");
    set.file.into_iter().find(|file| file.package() == "sidewatch.v1").expect("build.rs compiles proto/sidewatch/v1")
}

#[test]
fn the_api_only_grows() {
    let path = root().join(GOLDEN);
    let golden: BTreeSet<String> = read(&path).lines().map(str::to_owned).collect();
    let now = promises(&api());
    let (removed, added) = compare(&golden, &now);
    assert!(
        removed.is_empty(),
        "the API lost or changed what clients rely on; take a new name and number instead:\n{}\n",
        removed.join("\n")
    );
    if !added.is_empty() && std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = golden.union(&now).map(|line| format!("{line}\n")).collect::<String>();
        std::fs::write(&path, text).expect("the golden file can be written");
    } else {
        assert!(
            added.is_empty(),
            "the API grew; `UPDATE_EXPECT=1 make repo` writes this down:\n{}\n",
            added.join("\n")
        );
    }
}

#[test]
fn names_follow_the_packages_conventions() {
    let file = api();
    let mut findings = Vec::new();
    for group in &file.enum_type {
        let prefix = group.name().chars().fold(String::new(), |mut text, letter| {
            if letter.is_uppercase() && !text.is_empty() {
                text.push('_');
            }
            text.extend(letter.to_uppercase());
            text
        });
        let zero = group.value.iter().find(|value| value.number() == 0).map_or("", |value| value.name());
        if zero != format!("{prefix}_UNSPECIFIED") {
            findings.push(format!("enum {}: 0 must be {prefix}_UNSPECIFIED", group.name()));
        }
        findings.extend(
            group
                .value
                .iter()
                .filter(|value| !value.name().starts_with(&format!("{prefix}_")))
                .map(|value| format!("enum {}: {} must begin with {prefix}_", group.name(), value.name())),
        );
    }
    for service in &file.service {
        for method in &service.method {
            let want =
                (format!(".sidewatch.v1.{}Request", method.name()), format!(".sidewatch.v1.{}Response", method.name()));
            if (method.input_type(), method.output_type()) != (&want.0, &want.1) {
                findings.push(format!("rpc {}: takes {} and returns {}", method.name(), want.0, want.1));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn removing_renumbering_and_retyping_are_found() {
    let golden = promises(&api());
    let find = |file: &mut FileDescriptorProto| {
        file.message_type.iter().position(|message| message.name() == "Frame").expect("there")
    };
    let changed = |change: &dyn Fn(&mut FileDescriptorProto, usize)| {
        let mut file = api();
        let at = find(&mut file);
        change(&mut file, at);
        compare(&golden, &promises(&file))
    };
    assert_eq!(
        changed(&|file, at| {
            file.message_type[at].field.remove(0);
        })
        .0,
        ["field Frame.sequence = 1: uint64"]
    );
    assert_eq!(
        changed(&|file, at| file.message_type[at].field[0].number = Some(99)).0,
        ["field Frame.sequence = 1: uint64"]
    );
    assert_eq!(changed(&|file, at| file.message_type[at].field[0].r#type = Some(Type::String as i32)).0.len(), 1);
    assert_eq!(
        changed(&|file, _| {
            file.service[0].method.remove(1);
        })
        .0
        .len(),
        1
    );
    let grown = changed(&|file, at| {
        let field = file.message_type[at].field[0].clone();
        file.message_type[at].field.push(prost_types::FieldDescriptorProto {
            name: Some("more".to_owned()),
            number: Some(40),
            ..field
        });
    });
    assert_eq!(grown, (vec![], vec!["field Frame.more = 40: uint64".to_owned()]));
}
