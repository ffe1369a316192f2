//! Protobuf's text format, as far as BookKeeper's cookies and the records of auto-recovery need it: one level of fields.

/// As protobuf's text format: other bytes than printable ASCII in three octal digits.
pub(crate) fn escape(value: &str, out: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'"' => out.push_str("\\\""),
            b'\'' => out.push_str("\\'"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
}

/// Reads one quoted string with protobuf's escapes.
pub(crate) fn unescape(quoted: &str) -> Result<String, String> {
    let fault = || "a value is not a quoted string".to_owned();
    let quote = quoted.bytes().next().filter(|quote| matches!(quote, b'"' | b'\'')).ok_or_else(fault)?;
    let inner = quoted.as_bytes().get(1..).and_then(|rest| rest.strip_suffix(&[quote])).ok_or_else(fault)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == quote {
            return Err(fault());
        }
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let [kind, tail @ ..] = rest else { return Err(fault()) };
        rest = tail;
        let byte = match kind {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'\\' | b'"' | b'\'' | b'?' => *kind,
            b'x' | b'X' => digits(&mut rest, None, 16, 2).ok_or_else(fault)?,
            b'0'..=b'7' => digits(&mut rest, Some(*kind), 8, 3).ok_or_else(fault)?,
            _ => return Err(fault()),
        };
        out.push(byte);
    }
    String::from_utf8(out).map_err(|_| "a value is not text".to_owned())
}

/// Up to `count` digits, `first` included; `None` when there is none or they exceed a byte.
fn digits(rest: &mut &[u8], first: Option<u8>, radix: u32, count: usize) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(radix);
    let mut value = first.and_then(digit);
    for _ in usize::from(first.is_some())..count {
        let Some((next, tail)) = rest.split_first().and_then(|(byte, tail)| Some((digit(*byte)?, tail))) else { break };
        value = Some(value.unwrap_or(0) * radix + next);
        *rest = tail;
    }
    value.and_then(|value| u8::try_from(value).ok())
}

/// A field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// A quoted string.
    Text(String),
    /// A number or another bare word.
    Word(String),
}

/// The fields of a message without inner messages, in their order.
///
/// # Errors
/// Says what is malformed.
pub(crate) fn fields(text: &str) -> Result<Vec<(String, Value)>, String> {
    let is_gap = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(is_gap);
    while !rest.is_empty() {
        let (name, value) = rest.split_once(':').ok_or("a field has no value")?;
        let name = name.trim();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err("a field has no name".to_owned());
        }
        let value = value.trim_start();
        let is_quoted = value.starts_with(['"', '\'']);
        let end = if is_quoted { quoted_end(value) } else { Some(value.find(is_gap).unwrap_or(value.len())) };
        let (value, behind) = end.and_then(|end| value.split_at_checked(end)).ok_or("a value has no end")?;
        let value = if is_quoted { Value::Text(unescape(value)?) } else { Value::Word(value.to_owned()) };
        found.push((name.to_owned(), value));
        rest = behind.trim_start_matches(is_gap);
    }
    Ok(found)
}

/// Where the quoted string ends that `text` begins with, the closing quote included.
fn quoted_end(text: &str) -> Option<usize> {
    let quote = *text.as_bytes().first()?;
    let mut escaped = false;
    for (place, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return Some(place + 1),
            _ => {}
        }
    }
    None
}
