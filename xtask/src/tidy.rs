//! House rules that no other tool checks. Each violation is a line `file:line: message`.

mod docs;
mod manifests;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use crate::members;

/// A broken rule and its place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    file: PathBuf,
    line: usize,
    message: String,
}

/// Checks everything and prints what is wrong.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let members = members::read(root)?;
    let mut found = manifests::check(root, &members)?;
    for member in &members {
        for file in rust_files(&member.dir) {
            let text = members::text_of(&file)?;
            let relative = file.strip_prefix(root).unwrap_or(&file).to_owned();
            found.extend(sources::check(&relative, &text));
        }
    }
    found.extend(docs::check(root));
    if found.is_empty() {
        println!("tidy: all house rules are kept");
        return Ok(());
    }
    found.sort();
    for Violation { file, line, message } in &found {
        println!("{}:{line}: {message}", file.strip_prefix(root).unwrap_or(file).display());
    }
    Err(format!("tidy: {} violations of the house rules", found.len()))
}

fn violation(file: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Violation {
    Violation { file: file.into(), line, message: message.into() }
}

/// All `.rs` files below a folder, in order; hidden folders and build output are left out.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
