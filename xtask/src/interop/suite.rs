//! Which of BookKeeper's own test classes are run, for how long, and why others are not: `tests/interop/official/classes`.

use std::fs;
use std::path::Path;

/// Where the list is, from the root.
pub(super) const LIST: &str = "tests/interop/official/classes";

/// A class of BookKeeper's tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Without `org.apache.bookkeeper.`; a class of DistributedLog's without `org.apache.`.
    pub(super) name: String,
    /// The heading it stands under.
    pub(super) section: String,
    /// After so many minutes it is ended; what it has run till then counts, and the run fails.
    pub(super) minutes: u64,
    /// Whether CI runs it.
    pub(super) fast: bool,
    /// Methods that are not run, with the reason.
    pub(super) left_out: Vec<(String, String)>,
    /// Why nothing of it is run.
    pub(super) none: Option<String>,
}

impl Class {
    /// The name that Java knows it by.
    pub(super) fn full_name(&self) -> String {
        let project = if self.name.starts_with("distributedlog.") { "" } else { "bookkeeper." };
        format!("org.apache.{project}{}", self.name)
    }
}

/// Reads the list of the repository at `root`.
pub(super) fn read(root: &Path) -> Result<Vec<Class>, String> {
    let text = fs::read_to_string(root.join(LIST)).map_err(|error| format!("read {LIST}: {error}"))?;
    parse(&text)
}

/// `## heading`, `class MINUTES [fast]`, and below a class `    method: why it is not run` or `    *: why nothing is run`.
fn parse(text: &str) -> Result<Vec<Class>, String> {
    let mut section = String::new();
    let mut classes: Vec<Class> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("{LIST}:{}: {what}", index + 1);
        if let Some(heading) = line.strip_prefix("## ") {
            heading.clone_into(&mut section);
        } else if line.trim().is_empty() || line.starts_with('#') {
        } else if line.starts_with(' ') {
            let class = classes.last_mut().ok_or_else(|| wrong("a method before the first class"))?;
            let (method, reason) = line.trim().split_once(": ").ok_or_else(|| wrong("a method without a reason"))?;
            if method == "*" {
                class.none = Some(reason.to_owned());
            } else {
                class.left_out.push((method.to_owned(), reason.to_owned()));
            }
        } else {
            let mut words = line.split_whitespace();
            let (Some(name), Some(minutes)) = (words.next(), words.next().and_then(|word| word.parse().ok())) else {
                return Err(wrong("a class is a name and the minutes it may take"));
            };
            let fast = match words.next() {
                None => false,
                Some("fast") => true,
                Some(_) => return Err(wrong("after the minutes there is only `fast`")),
            };
            if classes.iter().any(|class| class.name == name) {
                return Err(wrong("a class that is in the list already"));
            }
            classes.push(Class { name: name.to_owned(), section: section.clone(), minutes, fast, ..Class::default() });
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let text = "# about\n## first\na.B 3 fast\n    m: looks inside\n    n: why: so\n\n## second\nc.D 1\n    *: no such thing\n";
        let classes = parse(text).unwrap();
        let m = |name: &str, why: &str| (name.to_owned(), why.to_owned());
        assert_eq!(classes.len(), 2);
        assert_eq!((classes[0].name.as_str(), classes[0].minutes, classes[0].fast), ("a.B", 3, true));
        assert_eq!(classes[0].left_out, [m("m", "looks inside"), m("n", "why: so")]);
        assert_eq!((classes[1].section.as_str(), classes[1].none.as_deref()), ("second", Some("no such thing")));
    }

    #[test]
    fn names_are_completed() {
        for (name, full) in [("a.B", "org.apache.bookkeeper.a.B"), ("distributedlog.C", "org.apache.distributedlog.C")]
        {
            assert_eq!(Class { name: name.to_owned(), ..Class::default() }.full_name(), full);
        }
    }

    #[test]
    fn a_list_that_is_wrong_is_refused_with_its_line() {
        for (text, line) in [("    m: x", 1), ("\na.B", 2), ("a.B 1 slow", 1), ("a.B 1\na.B 1", 2), ("a.B 1\n    m", 2)]
        {
            assert!(parse(text).is_err_and(|error| error.starts_with(&format!("{LIST}:{line}: "))), "{text}");
        }
    }
}
