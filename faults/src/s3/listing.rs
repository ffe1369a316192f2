//! A page of a listing, decided from the keys alone.

/// What a listing asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted<'a> {
    pub(super) prefix: &'a str,
    pub(super) delimiter: Option<&'a str>,
    /// Only what sorts behind this, which may be a common prefix of an earlier page.
    pub(super) after: Option<&'a str>,
    pub(super) most: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    Key(String),
    /// All keys that begin with this.
    Common(String),
}

impl Line {
    fn text(&self) -> &str {
        match self {
            Self::Key(text) | Self::Common(text) => text,
        }
    }
}

/// A page, and after what the next one begins, if there is one.
pub(super) fn page<'k>(keys: impl Iterator<Item = &'k str>, wanted: &Wanted<'_>) -> (Vec<Line>, Option<String>) {
    let mut lines: Vec<Line> = Vec::new();
    for key in keys {
        let Some(rest) = key.strip_prefix(wanted.prefix) else { continue };
        let common = wanted
            .delimiter
            .filter(|delimiter| !delimiter.is_empty())
            .and_then(|delimiter| rest.find(delimiter).map(|at| at + delimiter.len()))
            .map(|end| &key[..wanted.prefix.len() + end]);
        let text = common.unwrap_or(key);
        if wanted.after.is_some_and(|after| text <= after) || lines.last().is_some_and(|last| last.text() == text) {
            continue;
        }
        if lines.len() >= wanted.most {
            let next = lines.last().map(|last| last.text().to_owned());
            return (lines, next);
        }
        let text = text.to_owned();
        lines.push(if common.is_some() { Line::Common(text) } else { Line::Key(text) });
    }
    (lines, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 7] = ["a/1", "a/2", "a/b/3", "a/b/4", "a/c", "ab", "b/1"];

    /// All pages of a listing, joined.
    fn all(wanted: Wanted<'_>) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), wanted.after.map(str::to_owned));
        loop {
            let (lines, next) = page(KEYS.into_iter(), &Wanted { after: after.as_deref(), ..wanted });
            assert!(lines.len() <= wanted.most);
            found.extend(lines.into_iter().map(|line| match line {
                Line::Key(key) => key,
                Line::Common(prefix) => format!("[{prefix}]"),
            }));
            match next {
                Some(next) => after = Some(next),
                None => return found,
            }
        }
    }

    #[test]
    fn pages_of_every_size_are_one_listing() {
        for most in 1..9 {
            let wanted = Wanted { most, ..Wanted::default() };
            assert_eq!(all(wanted), KEYS);
            assert_eq!(all(Wanted { prefix: "a/", ..wanted }), KEYS[..5]);
            assert_eq!(all(Wanted { prefix: "a/", after: Some("a/b/3"), ..wanted }), ["a/b/4", "a/c"]);
            assert_eq!(all(Wanted { prefix: "none", ..wanted }), Vec::<String>::new());
            let folders = Wanted { delimiter: Some("/"), ..wanted };
            assert_eq!(all(folders), ["[a/]", "ab", "[b/]"]);
            assert_eq!(all(Wanted { prefix: "a/", ..folders }), ["a/1", "a/2", "[a/b/]", "a/c"]);
        }
    }
}
