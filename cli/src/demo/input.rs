//! The demo's input: which files are read, and how bytes become entries.
//!
//! An entry is one line *with* its line feed, so that the entries one after the other are exactly the file: CRLF, lone CR,
//! invalid UTF-8, empty lines and a missing last line feed all survive. A line over [`LINE_BYTES_MAX`] is cut into several entries.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::Fault;

/// The longest line kept as one entry, 4 MiB: below the frame limit of BookKeeper clients with room for headers.
pub const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How much the default input is topped up to, 64 MiB.
const DEFAULT_BYTES: u64 = 64 * 1024 * 1024;
/// Below this the input cannot fill the ledgers that the verdict needs (four settled and one hot, 256 KiB each).
const MIN_BYTES: u64 = 5 * 256 * 1024;

/// The files to read, in order, and what was passed over.
#[derive(Debug, Default)]
pub struct Input {
    /// Files with their sizes in bytes when they were listed.
    pub files: Vec<(PathBuf, u64)>,
    /// What was skipped, with the reason.
    pub skipped: Vec<(PathBuf, String)>,
}

impl Input {
    /// The sum of the listed sizes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Lists the files and folders the user named. A path that does not exist or cannot be read is an error that names it.
    pub fn named(paths: &[PathBuf]) -> Result<Self, Fault> {
        let mut input = Self::default();
        let mut everything = u64::MAX;
        for path in paths {
            let facts = fs::metadata(path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => Fault::usage(format!("--input {}: no such file or folder", path.display())),
                _ => Fault::usage(format!("--input {}: {error}", path.display())),
            })?;
            if facts.is_dir() {
                input.walk(path, &|_| None, &mut everything);
            } else {
                File::open(path).map_err(|error| Fault::usage(format!("--input {}: {error}", path.display())))?;
                input.files.push((path.clone(), facts.len()));
            }
        }
        input.require_enough()?;
        Ok(input)
    }

    /// The default input: readable text logs under /var/log, topped up with sources of cargo's registry to 64 MiB.
    pub fn default_logs() -> Result<Self, Fault> {
        let mut input = Self::default();
        let mut wanted = DEFAULT_BYTES;
        input.walk(Path::new("/var/log"), &not_text, &mut wanted);
        if let Some(registry) = cargo_registry() {
            let mut sources = Self::default();
            sources.walk(&registry, &not_source, &mut wanted);
            // What is no source file there is of no interest to anyone.
            input.files.append(&mut sources.files);
        }
        input.require_enough()?;
        Ok(input)
    }

    fn require_enough(&self) -> Result<(), Fault> {
        let bytes = self.bytes();
        if bytes >= MIN_BYTES {
            return Ok(());
        }
        Err(Fault::usage(format!(
            "the input has {bytes} bytes; the demo needs at least {MIN_BYTES} to fill four settled ledgers and a hot one: name more with --input"
        )))
    }

    /// Adds the regular files below a folder in name order until `wanted` bytes are found; `refuse` says why a file is passed over.
    fn walk(&mut self, folder: &Path, refuse: &dyn Fn(&Path) -> Option<String>, wanted: &mut u64) {
        let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                self.skipped.push((folder.to_owned(), error.to_string()));
                return;
            }
        };
        let paths: BTreeSet<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        for path in paths {
            if *wanted == 0 {
                return;
            }
            // Links are not followed: they may lead out of the folder or around in a circle.
            let Ok(facts) = fs::symlink_metadata(&path) else { continue };
            if facts.is_dir() {
                self.walk(&path, refuse, wanted);
            } else if facts.is_file() {
                match File::open(&path).map_err(|error| error.to_string()).err().or_else(|| refuse(&path)) {
                    Some(reason) => self.skipped.push((path, reason)),
                    None if facts.len() == 0 => self.skipped.push((path, "empty".to_owned())),
                    None => {
                        *wanted = wanted.saturating_sub(facts.len());
                        self.files.push((path, facts.len()));
                    }
                }
            }
        }
    }
}

/// Cargo's folder of unpacked sources, if this machine has one.
fn cargo_registry() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))?;
    Some(home.join("registry").join("src")).filter(|path| path.is_dir())
}

fn not_text(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(8192).read_to_end(&mut head));
    match read {
        Err(error) => Some(error.to_string()),
        Ok(_) if head.contains(&0) => Some("not text".to_owned()),
        Ok(_) => None,
    }
}

fn not_source(path: &Path) -> Option<String> {
    let text = path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| {
        matches!(extension, "rs" | "md" | "toml" | "c" | "h" | "cc" | "cpp" | "txt" | "proto" | "yml")
    });
    if text { not_text(path) } else { Some("not a source file".to_owned()) }
}

/// Cuts a stream into entries: lines with their line feeds, at most [`LINE_BYTES_MAX`] each.
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<R>,
}

impl<R: Read> Lines<R> {
    /// Reads from `source` through a buffer of 256 KiB.
    pub fn new(source: R) -> Self {
        Self { reader: BufReader::with_capacity(256 * 1024, source) }
    }

    /// The next entry, or none at the end.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            let buffered = self.reader.fill_buf()?;
            if buffered.is_empty() {
                return Ok((!line.is_empty()).then_some(line));
            }
            let room = LINE_BYTES_MAX - line.len();
            let window = &buffered[..buffered.len().min(room)];
            let end = window.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(window.len());
            line.extend_from_slice(&window[..taken]);
            self.reader.consume(taken);
            if end.is_some() || line.len() == LINE_BYTES_MAX {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Lines::new(bytes);
        std::iter::from_fn(|| lines.next_line().unwrap()).collect()
    }

    #[test]
    fn entries_joined_are_the_input_whatever_the_line_ends() {
        let input = b"crlf\r\n\nlone\rcr\n\xff\xfe not utf-8\n\r\nno feed at the end";
        let entries = cut(input);
        assert_eq!(entries.concat(), input);
        assert_eq!(entries.len(), 6);
        assert_eq!(entries[1], b"\n");
        assert_eq!(entries[2], b"lone\rcr\n");
    }

    #[test]
    fn a_line_over_the_limit_is_cut_and_nothing_is_lost() {
        let mut input = vec![b'x'; LINE_BYTES_MAX * 2 + 5];
        input.extend_from_slice(b"\nshort\n");
        let entries = cut(&input);
        let sizes: Vec<usize> = entries.iter().map(Vec::len).collect();
        assert_eq!(sizes, [LINE_BYTES_MAX, LINE_BYTES_MAX, 6, 6]);
        assert_eq!(entries.concat(), input);
    }

    #[test]
    fn a_line_of_one_mebibyte_is_one_entry() {
        let mut input = vec![b'y'; 1024 * 1024];
        input.push(b'\n');
        assert_eq!(cut(&input).len(), 1);
    }

    #[test]
    fn an_empty_input_has_no_entry() {
        assert!(cut(b"").is_empty());
    }

    #[test]
    fn a_missing_path_is_named() {
        let fault = Input::named(&[PathBuf::from("/no/such/log")]).unwrap_err();
        assert!(fault.to_string().contains("/no/such/log: no such file"), "{fault}");
        assert_eq!(fault.exit_code(), 2);
    }

    #[test]
    fn too_small_an_input_says_how_much_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.log"), b"one line\n").unwrap();
        let fault = Input::named(&[folder.path().to_owned()]).unwrap_err();
        assert!(fault.to_string().contains("needs at least"), "{fault}");
    }
}
