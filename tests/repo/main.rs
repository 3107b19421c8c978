//! What must be true of the repository itself; needs no server.
//!
//! `tidy` holds the architecture: which module may import which, and what no file may contain.
//! `api` keeps the gRPC API from shrinking. `documents` keeps the documents from lying.

mod api;
mod documents;
mod source;
mod tidy;

use std::path::{Path, PathBuf};

/// The top of the tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `folder` with this extension, in order; nothing when there is no such folder.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("a folder of the tree can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "__pycache__" {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The path as people write it: from the top of the tree.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The text of a file of the tree.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", shown(path)))
}

/// Fails with one line per finding.
fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} finding(s):\n{}\n", findings.len(), findings.join("\n"));
}
