//! `docs/configuration.md`, made from the table of keys. `UPDATE_EXPECT=1 cargo test document` rewrites it.

use std::fmt::Write as _;

use crate::config::keys::{FEED_KEYS, KEYS, Key, Shape};

const HEAD: &str = "\
# Configuration

<!-- Made from src/config/keys.rs by `UPDATE_EXPECT=1 cargo test document`; edit the table there. -->

Every key can be given in three ways: in a YAML file (`--config FILE` or `SIDEWATCH_CONFIG`), in an environment
variable, and as a flag. A flag wins over a variable, a variable over the file; an empty variable or list counts as
unset. Lists in variables and flags are joined by commas, and a flag of a list may be repeated; in the file a list is a
YAML list, also with one entry. The dot in a key is a level of the file: `lease.name` stands under `lease`. `feeds`
exists only in the file.

```
sidewatch run --watch pods --watch widgets.example.com --namespace shop --lease shop-events
```

Durations are whole numbers with a unit: `500ms`, `15s`, `1m30s`. Amounts of bytes may end in `Ki`, `Mi`, `Gi`, `k`,
`M` or `G`.

`sidewatch run --check` reads all of it, prints the effective configuration as a file, and ends with status 0; when
something is wrong it names every fault with its place, the key, the value and the rule, and ends with status 2. A
file that is not of the right shape (not YAML, an unknown key, one value where a list belongs) and an unknown variable
`SIDEWATCH_…` are named alone, before the values are looked at. Nothing is asked of a cluster, so it says nothing about
the existence of a resource or a right.

## Keys

| key | flag | variable | default | allowed | |
| --- | --- | --- | --- | --- | --- |
";

const FEEDS: &str = "
## Entries of `feeds`

A watch over several namespaces is several feeds, named `NAME@NAMESPACE`; clients select all of them by `NAME`. A feed
with selectors of its own needs a name of its own when the resource is watched twice.

| key | default | allowed | |
| --- | --- | --- | --- |
";

const EXAMPLE: &str = "
## A file

```yaml
feeds:
  - resource: pods
    namespaces: [shop, billing]
    labelSelector: app in (web,worker)
  - name: failed-pods
    resource: pods
    allNamespaces: true
    fieldSelector: status.phase=Failed
watch: [widgets.example.com]
namespaces: [shop]
subscriptions: [app, audit]
lease:
  name: shop-events
  duration: 15s
  renewDeadline: 10s
  retryPeriod: 2s
listen:
  - 127.0.0.1:50151
  - unix:///run/sidewatch/events.sock?mode=0660
journal:
  limit: 128Mi
log:
  level: info
  format: json
```
";

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

fn document() -> String {
    let mut text = HEAD.to_owned();
    for key in KEYS {
        let Key { name, flag, env, shape, default, unit, bound, sentence } = *key;
        let flag = match shape {
            Shape::FileOnly => String::new(),
            Shape::Switch => format!("--{flag}"),
            Shape::One | Shape::List => format!("--{flag} {unit}"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {bound} | {sentence} |",
            code(name),
            code(&flag),
            code(env),
            code(default)
        );
    }
    text.push_str(FEEDS);
    for Key { name, default, bound, sentence, .. } in FEED_KEYS {
        let _ = writeln!(text, "| {} | {default} | {bound} | {sentence} |", code(name));
    }
    text.push_str(EXAMPLE);
    text
}

#[test]
fn document_agrees_with_the_table() {
    expect_test::expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md")].assert_eq(&document());
}

#[test]
fn the_documented_file_is_valid() {
    let yaml = EXAMPLE.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let config = super::tests::load_file(yaml).unwrap();
    assert_eq!(config.watches.len(), 3);
}
