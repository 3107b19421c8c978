//! Documents that fail when they lie: links, the README's commands, manifests, the failure catalogue.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::{assert_none, files, read, root, shown};

/// The README's commands and what runs them, so that none is printed that nobody tries.
const README_COMMANDS: &[(&str, &str)] = &[
    ("make test", "test"),
    ("cargo run --release -- playground", "playground-test"),
    ("kubectl apply -f deploy/example.yaml", "repo"),
    ("python3 -m pip install grpcio grpcio-tools", "it"),
    ("python3 -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. sidewatch/v1/sidewatch.proto", "it"),
    ("grpcurl -plaintext 127.0.0.1:50151 list", "it"),
    ("grpcurl -plaintext -d '{\"end_after_snapshot\":true}' 127.0.0.1:50151 sidewatch.v1.EventService/Subscribe", "it"),
];

/// The commands in the fenced `sh` blocks of a document, continued lines joined.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = line.trim() == "```sh";
        } else if inside && !line.trim().is_empty() && !line.trim_start().starts_with('#') {
            found.push(line.split("  #").next().unwrap_or(line).trim().to_owned());
        }
    }
    found
}

/// What of the commands and the table does not agree, or names no target of the Makefile.
fn check_commands(document: &str, makefile: &str, table: &[(&str, &str)]) -> Vec<String> {
    let commands = commands(document);
    let unknown = commands.iter().filter(|command| !table.iter().any(|(known, _)| known == command));
    let gone = table.iter().filter(|(known, _)| !commands.iter().any(|command| command == known));
    let idle = table.iter().filter(|(_, target)| !makefile.lines().any(|line| line.starts_with(&format!("{target}:"))));
    unknown
        .map(|command| {
            format!("README.md: `{command}` is run by nothing: add it to tests/repo/documents.rs with what runs it")
        })
        .chain(gone.map(|(known, _)| format!("tests/repo/documents.rs: `{known}` is not in README.md")))
        .chain(
            idle.map(|(known, target)| {
                format!("tests/repo/documents.rs: `{known}`: no target `{target}` in the Makefile")
            }),
        )
        .collect()
}

/// The targets of a document's links, with their lines; what stands in code is no link.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let mut rest = prose.as_str();
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push((at + 1, rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    found
}

/// The anchor of a heading: lower case, blanks to hyphens, punctuation gone.
fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading
                .chars()
                .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'))
                .map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

/// Every link of the document that leads nowhere.
fn check_links(path: &Path, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (line, link) in links(text) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
        let target = if file.is_empty() { path.to_path_buf() } else { path.parent().unwrap_or(root()).join(file) };
        if !target.exists() {
            findings.push(format!("{}:{line}: `{link}` leads nowhere", shown(path)));
        } else if let Some(anchor) = anchor {
            let there = if file.is_empty() { anchors(text) } else { anchors(&read(&target)) };
            if !there.contains(anchor) {
                findings.push(format!("{}:{line}: `{link}`: no such heading", shown(path)));
            }
        }
    }
    findings
}

/// Words in backquotes that look like files of the tree and are none.
fn check_paths(path: &Path, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for word in line.split('`').skip(1).step_by(2) {
            let ours = !word.contains("NNNN")
                && ["src/", "crates/", "tests/", "docs/", "deploy/", "proto/", ".ci/"]
                    .iter()
                    .any(|top| word.starts_with(top));
            let plain = word.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter));
            if ours && plain && !root().join(word).exists() {
                findings.push(format!("{}:{}: `{word}` does not exist", shown(path), at + 1));
            }
        }
    }
    findings
}

/// Tests that the failure catalogue names and no source has.
fn check_catalogue(text: &str, sources: &str) -> Vec<String> {
    text.lines()
        .skip_while(|line| !line.starts_with("## E."))
        .take_while(|line| !line.starts_with("## F."))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|word| word.starts_with("it::"))
        .filter(|test| !sources.contains(&format!("fn {}(", test.rsplit("::").next().unwrap_or(test))))
        .map(|test| format!("docs/protocol.md: the failure catalogue names the test `{test}`, which does not exist"))
        .collect()
}

/// What of a manifest does not agree with itself.
fn check_manifest(path: &str, text: &str) -> Vec<String> {
    let objects: Vec<Value> = match serde_saphyr::from_multiple(text) {
        Ok(objects) => objects,
        Err(error) => return vec![format!("{path}: {error}")],
    };
    let mut findings = Vec::new();
    let of = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let resources: Vec<&Value> =
        of("Role").iter().flat_map(|role| list(&role["rules"])).flat_map(|rule| list(&rule["resources"])).collect();
    for deployment in of("Deployment") {
        let pod = &deployment["spec"]["template"]["spec"];
        if pod["automountServiceAccountToken"] != false {
            findings.push(format!("{path}: the application's container would hold a token"));
        }
        if !of("ServiceAccount").iter().any(|account| account["metadata"]["name"] == pod["serviceAccountName"]) {
            findings.push(format!("{path}: no ServiceAccount {}", pod["serviceAccountName"]));
        }
        for sidecar in list(&pod["initContainers"]) {
            for argument in list(&sidecar["args"]).filter_map(|argument| argument.as_str()?.strip_prefix("--watch=")) {
                let resource = argument.split('.').next().unwrap_or_default();
                if !resources.iter().any(|known| *known == resource) {
                    findings.push(format!("{path}: watches {resource}, which no Role lets it read"));
                }
            }
            for (probe, page) in
                [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
            {
                if sidecar[probe]["httpGet"]["path"] != page {
                    findings.push(format!("{path}: {probe} must ask {page}"));
                }
            }
            for mount in list(&sidecar["volumeMounts"]) {
                if !list(&pod["volumes"]).any(|volume| volume["name"] == mount["name"]) {
                    findings.push(format!("{path}: no volume {}", mount["name"]));
                }
            }
        }
    }
    findings
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn documents() -> Vec<std::path::PathBuf> {
    files("", "md")
}

#[test]
fn links_lead_somewhere() {
    let findings: Vec<String> = documents().iter().flat_map(|path| check_links(path, &read(path))).collect();
    assert_none(&findings);
}

#[test]
fn paths_in_documents_exist() {
    let findings: Vec<String> = documents().iter().flat_map(|path| check_paths(path, &read(path))).collect();
    assert_none(&findings);
}

#[test]
fn the_readmes_commands_are_run() {
    let (readme, makefile) = (read(&root().join("README.md")), read(&root().join("Makefile")));
    assert_none(&check_commands(&readme, &makefile, README_COMMANDS));
}

#[test]
fn the_catalogue_names_tests_that_exist() {
    let sources: String =
        ["crates", "src", "tests"].iter().flat_map(|folder| files(folder, "rs")).map(|path| read(&path)).collect();
    assert_none(&check_catalogue(&read(&root().join("docs/protocol.md")), &sources));
}

#[test]
fn manifests_agree_with_themselves() {
    let manifests = files("deploy", "yaml");
    assert!(!manifests.is_empty(), "deploy/ holds no manifest");
    let findings: Vec<String> = manifests.iter().flat_map(|path| check_manifest(&shown(path), &read(path))).collect();
    assert_none(&findings);
}

#[test]
fn the_lock_file_names_one_registry() {
    let lock = read(&root().join("Cargo.lock"));
    let findings: Vec<String> = lock
        .lines()
        .filter(|line| {
            line.starts_with("source = ") && !line.contains("registry+https://github.com/rust-lang/crates.io-index")
        })
        .map(|line| format!("Cargo.lock: {line}"))
        .collect();
    assert_none(&findings);
}

#[test]
fn each_check_can_fail() {
    let here = root().join("README.md");
    assert_eq!(check_links(&here, "a [b](docs/none.md) `[c](d)`").len(), 1);
    assert_eq!(check_links(&here, "# Only this\n[b](#another)").len(), 1);
    assert_none(&check_links(
        &here,
        "# Only this: one\n[b](#only-this-one) [c](https://sidewatch.dev) [d](Cargo.toml)",
    ));
    assert_eq!(check_paths(&here, "`src/none.rs` `src/main.rs` `src/…` src/none").len(), 1);
    let found = check_commands(
        "```sh\nmake test\nmake all\n```\n```python\nx\n```",
        "test: a\n",
        &[("make test", "test"), ("make it", "it")],
    );
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(check_catalogue("## E.\n| 1 | `it::gone` | `it::there` |\n## F.", "fn there() {}").len(), 1);
    let manifest = read(&root().join("deploy/example.yaml"));
    assert_eq!(check_manifest("m", &manifest.replace("--watch=configmaps", "--watch=pods")).len(), 1);
    assert_eq!(check_manifest("m", &manifest.replace("/livez", "/health")).len(), 2);
    assert_eq!(check_manifest("m", &manifest.replace("serviceAccountName: app", "serviceAccountName: none")).len(), 1);
    assert_eq!(check_manifest("m", "a: [").len(), 1);
}
