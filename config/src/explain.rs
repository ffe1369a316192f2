//! From "it does not fit" to a sentence: which key, what would fit, which key was probably meant.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::layers::{self, Leaf};
use crate::{ConfigError, Origin};

const REDACTED: &str = "<redacted>";
/// More keys than this are not listed in a message.
const LISTED_KEYS_MAX: usize = 12;

/// The fault of one leaf set alone over the defaults, if it has one.
pub(crate) fn fault<T: DeserializeOwned>(defaults: &Table, leaf: &Leaf, origin: &Origin) -> Option<ConfigError> {
    let mut alone = defaults.clone();
    layers::set(&mut alone, leaf);
    let error = alone.try_into::<T>().err()?;
    let key = leaf.key();
    if let Some(fault) = shape_fault(defaults, leaf, origin) {
        return Some(fault);
    }
    let message = error.message();
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (field, rest) = rest.split_once('`').unwrap_or((rest, ""));
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        return Some(unknown_key(defaults, leaf, field, &known, origin));
    }
    let cause = match (is_secret(&key), humane(message)) {
        (true, Some(cause)) => cause,
        // The message may quote the value.
        (true, None) => "the value is not accepted".to_owned(),
        (false, cause) => cause.unwrap_or_else(|| message.trim().to_owned()),
    };
    Some(ConfigError::InvalidValue { value: shown(&key, &leaf.value, true), key, origin: origin.clone(), cause })
}

/// A single value where a section is known, or the other way round.
fn shape_fault(defaults: &Table, leaf: &Leaf, origin: &Origin) -> Option<ConfigError> {
    let invalid = |key: String, cause: String| {
        let value = shown(&leaf.key(), &leaf.value, true);
        Some(ConfigError::InvalidValue { key, value, origin: origin.clone(), cause })
    };
    if let Some(Value::Table(section)) = layers::find(defaults, &leaf.path)
        && !leaf.value.is_table()
    {
        let example = section.keys().next().map_or(String::new(), |name| format!(", such as {}.{name}", leaf.key()));
        return invalid(leaf.key(), format!("it is a section, set its keys{example}"));
    }
    let above = (1..leaf.path.len()).map(|end| &leaf.path[..end]);
    let single = above.into_iter().find(|path| layers::find(defaults, path).is_some_and(|value| !value.is_table()))?;
    let single = single.join(".");
    invalid(leaf.key(), format!("{single} is a single value and has no keys below it"))
}

/// `field` is the part of the key that is unknown, `known` what the struct has in its place.
pub(crate) fn unknown_key(defaults: &Table, leaf: &Leaf, field: &str, known: &[&str], origin: &Origin) -> ConfigError {
    let depth = leaf.path.iter().position(|part| part == field).unwrap_or(leaf.path.len() - 1);
    let place = |name: &str| {
        let mut path = leaf.path[..depth].to_vec();
        path.push(name.to_owned());
        path.join(".")
    };
    let key = place(&leaf.path[depth]);
    let beside = nearest(&leaf.path[depth], known.iter().copied()).map(place);
    let suggestion = beside.or_else(|| elsewhere(defaults, leaf));
    let hint = match &suggestion {
        Some(near) => format!("; did you mean {near}?"),
        None if known.is_empty() || known.len() > LISTED_KEYS_MAX => {
            "; `thermocline config show` lists all keys".to_owned()
        }
        None => format!("; known here: {}", known.join(", ")),
    };
    ConfigError::UnknownKey { key, origin: origin.clone(), suggestion, hint }
}

/// A known key with the same last name, when the user only missed the section; else the nearest whole key.
fn elsewhere(defaults: &Table, leaf: &Leaf) -> Option<String> {
    let known: Vec<Leaf> = layers::leaves(defaults, true);
    let moved = known.iter().find(|other| other.path.last() == leaf.path.last()).map(Leaf::key);
    let keys: Vec<String> = known.iter().map(Leaf::key).collect();
    moved.or_else(|| nearest(&leaf.key(), keys.iter().map(String::as_str)).map(str::to_owned))
}

/// The candidate that is closest to `word`, if it is close enough to be a slip.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase().replace('-', "_");
    let slips_max = (word.chars().count() / 3).max(1);
    let scored = candidates.map(|name| (distance(&word, &name.replace('-', "_")), name));
    scored.filter(|(slips, _)| *slips <= slips_max).min().map(|(_, name)| name)
}

/// Levenshtein's: single characters added, removed or replaced.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[right.len()]
}

/// serde's words for what was expected, in a user's words; `None` when the message is already the struct's own.
fn humane(message: &str) -> Option<String> {
    let typed = ["invalid type: ", "invalid value: ", "unknown variant ", "invalid length "];
    typed.iter().find(|start| message.starts_with(**start))?;
    let (_, expected) = message.split_once(", expected ")?;
    let expected = expected.trim();
    let number = |max: u64| format!("a whole number from 0 to {max}");
    let accepted = match expected {
        "u8" => number(u8::MAX.into()),
        "u16" => number(u16::MAX.into()),
        "u32" => number(u32::MAX.into()),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "text".to_owned(),
        "a sequence" => "a list such as [\"a\", \"b\"]".to_owned(),
        other => other.replace('`', ""),
    };
    Some(if message.starts_with("unknown variant") {
        format!("write {accepted}")
    } else {
        format!("expected {accepted}")
    })
}

fn is_secret(key: &str) -> bool {
    let last = key.rsplit('.').next().unwrap_or(key).to_lowercase();
    ["password", "secret", "token"].iter().any(|word| last.contains(word))
}

/// A value for people, without secrets: neither those in keys that say so nor credentials inside a URL.
pub(crate) fn shown(key: &str, value: &Value, quoted: bool) -> String {
    if is_secret(key) {
        return REDACTED.to_owned();
    }
    let text = without_credentials(&layers::plain(value));
    if quoted && value.is_str() { format!("{text:?}") } else { text }
}

fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority_end].rfind('@') {
        Some(at) => format!("{scheme}://{REDACTED}{}", &rest[at..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (left, right, slips) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("listen", "listne", 2)]
        {
            assert_eq!(distance(left, right), slips);
            assert_eq!(distance(right, left), slips);
        }
    }

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let known = ["listen", "journal_bytes", "sync"];
        assert_eq!(nearest("lisen", known.into_iter()), Some("listen"));
        assert_eq!(nearest("journal-byte", known.into_iter()), Some("journal_bytes"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }

    #[test]
    fn credentials_in_urls_are_hidden() {
        assert_eq!(without_credentials("s3://key:word@host/bucket?a@b"), "s3://<redacted>@host/bucket?a@b");
        for plain in ["s3://bucket/a@b", "file:///tmp", "a@b", ""] {
            assert_eq!(without_credentials(plain), plain);
        }
    }
}
