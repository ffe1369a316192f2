//! The text form: line 1 = version, then `field: "value"` a line (4 and 5), or four plain lines (3). We write 5.

use ::ledger::BookieId;

use crate::text_format::{escape, unescape};
use crate::{Error, ErrorKind};

/// No cookie has a reason to be longer.
const COOKIE_BYTES_MAX: usize = 64 << 10;

/// What a cookie says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cookie {
    /// Whose it is.
    pub bookie: BookieId,
    /// The journal directories.
    pub journal_dirs: Vec<String>,
    /// The directories of entries.
    pub ledger_dirs: Vec<String>,
    /// The directories of indexes; `None`: those of entries.
    pub index_dirs: Option<Vec<String>>,
    /// The cluster; `None` in cookies of old releases.
    pub instance: Option<String>,
}

impl Cookie {
    /// Checks that the directories can be told apart in the text form.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when a journal directory holds a comma, a directory holds a TAB, or one is empty.
    pub fn new(
        bookie: BookieId,
        journal_dirs: Vec<String>,
        ledger_dirs: Vec<String>,
        instance: &str,
    ) -> Result<Self, Error> {
        for (dir, separator) in
            journal_dirs.iter().map(|dir| (dir, ',')).chain(ledger_dirs.iter().map(|dir| (dir, '\t')))
        {
            if dir.is_empty() || dir.contains(separator) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "make cookie of bookie {bookie}: the directory name {dir:?} is empty or holds {separator:?}"
                    ),
                ));
            }
        }
        Ok(Self { bookie, journal_dirs, ledger_dirs, index_dirs: None, instance: Some(instance.to_owned()) })
    }

    /// The text, version 5.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::from("5\n");
        let mut field = |name: &str, value: &str| {
            text.push_str(name);
            text.push_str(": \"");
            escape(value, &mut text);
            text.push_str("\"\n");
        };
        field("bookieHost", self.bookie.as_str());
        field("journalDir", &self.journal_dirs.join(","));
        field("ledgerDirs", &counted(&self.ledger_dirs));
        if let Some(instance) = &self.instance {
            field("instanceId", instance);
        }
        if let Some(dirs) = &self.index_dirs {
            field("indexDirs", &counted(dirs));
        }
        text
    }

    /// Reads versions 3, 4 and 5.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] for malformed text, [`ErrorKind::Unsupported`] for another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > COOKIE_BYTES_MAX {
            return Err(damaged(format!("it is {} bytes long", bytes.len())));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text".into()))?;
        let (version, rest) = text.split_once('\n').ok_or_else(|| damaged("it has one line only".into()))?;
        match version.trim_end() {
            "3" => Self::decode_plain(rest),
            "4" | "5" => Self::decode_fields(rest),
            other => {
                let shown: String = other.chars().take(20).collect();
                Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("read cookie: its version is {shown:?}, this release reads 3 to 5"),
                ))
            }
        }
    }

    fn decode_plain(text: &str) -> Result<Self, Error> {
        let mut lines = text.lines();
        let mut line = |what: &str| lines.next().ok_or_else(|| damaged(format!("it has no {what}")));
        Ok(Self {
            bookie: bookie(line("bookie id")?)?,
            journal_dirs: joined(line("journal directory")?),
            ledger_dirs: uncounted(line("ledger directories")?)?,
            index_dirs: None,
            instance: None,
        })
    }

    fn decode_fields(text: &str) -> Result<Self, Error> {
        let (mut host, mut journal, mut ledgers, mut instance, mut index) = (None, None, None, None, None);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or_else(|| damaged("a line is no field".into()))?;
            let slot = match name.trim_end() {
                "bookieHost" => &mut host,
                "journalDir" => &mut journal,
                "ledgerDirs" => &mut ledgers,
                "instanceId" => &mut instance,
                "indexDirs" => &mut index,
                // A field of a later release.
                _ => continue,
            };
            if slot.replace(unescape(value.trim_start()).map_err(damaged)?).is_some() {
                return Err(damaged(format!("the field {name} occurs twice")));
            }
        }
        let want = |field: Option<String>, name: &str| field.ok_or_else(|| damaged(format!("it has no {name}")));
        Ok(Self {
            bookie: bookie(&want(host, "bookieHost")?)?,
            journal_dirs: joined(&want(journal, "journalDir")?),
            ledger_dirs: uncounted(&want(ledgers, "ledgerDirs")?)?,
            index_dirs: index.map(|dirs| uncounted(&dirs)).transpose()?,
            instance,
        })
    }
}

fn damaged(fault: String) -> Error {
    Error::new(ErrorKind::Damaged, format!("read cookie: {fault}"))
}

fn bookie(text: &str) -> Result<BookieId, Error> {
    BookieId::new(text).map_err(|error| damaged("its bookie id is none".into()).caused_by(error))
}

fn joined(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

/// `<count> TAB <dir> TAB <dir> …`
fn counted(dirs: &[String]) -> String {
    let mut text = dirs.len().to_string();
    for dir in dirs {
        text.push('\t');
        text.push_str(dir);
    }
    text
}

fn uncounted(text: &str) -> Result<Vec<String>, Error> {
    let mut parts = text.split('\t');
    let count: usize = parts
        .next()
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| damaged("a list of directories has no count".into()))?;
    let dirs: Vec<String> = parts.map(str::to_owned).collect();
    if dirs.len() != count {
        return Err(damaged(format!("a list of {count} directories has {}", dirs.len())));
    }
    Ok(dirs)
}
