//! Format 2: the message in protobuf's text form, one field a line, as `protobuf-java` prints it. The reader takes what that
//! form allows for these fields: any order and spacing, comments, either quote, adjacent strings, numbers in three bases.

use super::format::{CustomFormat, LedgerMetadataFormat, SegmentFormat, refuse};
use crate::digest::DigestType;
use crate::error::Error;
use bytes::Bytes;

const STATES: [&str; 3] = ["OPEN", "IN_RECOVERY", "CLOSED"];

/// A field's value.
enum Node {
    Word(String),
    Text(Vec<u8>),
    Message(Vec<(String, Node)>),
}

pub(super) fn decode(bytes: &[u8]) -> Result<LedgerMetadataFormat, Error> {
    let mut lexer = Lexer { rest: bytes };
    let mut message = LedgerMetadataFormat::default();
    for (name, node) in lexer.fields(0)? {
        match name.as_str() {
            "quorumSize" => message.quorum_size = Some(i32_of(&name, node)?),
            "ensembleSize" => message.ensemble_size = Some(i32_of(&name, node)?),
            "length" => message.length = Some(i64_of(&name, node)?),
            "lastEntryId" => message.last_entry_id = Some(i64_of(&name, node)?),
            "state" => message.state = Some(state_of(node)?),
            "segment" => message.segment.push(segment_of(node)?),
            "digestType" => message.digest_type = Some(digest_type_of(node)?),
            "password" => message.password = Some(text_of(&name, node)?),
            "ackQuorumSize" => message.ack_quorum_size = Some(i32_of(&name, node)?),
            "ctime" => message.ctime = Some(i64_of(&name, node)?),
            "customMetadata" => message.custom_metadata.push(custom_of(node)?),
            "cToken" => message.c_token = Some(i64_of(&name, node)?),
            _ => return Err(refuse(format!("field {:?} is not known here", shorten(&name)))),
        }
    }
    Ok(message)
}

pub(super) fn encode(message: &LedgerMetadataFormat, out: &mut Vec<u8>) {
    let number = |name: &str, value: Option<i64>, out: &mut Vec<u8>| {
        if let Some(value) = value {
            out.extend_from_slice(format!("{name}: {value}\n").as_bytes());
        }
    };
    number("quorumSize", message.quorum_size.map(i64::from), out);
    number("ensembleSize", message.ensemble_size.map(i64::from), out);
    number("length", message.length, out);
    number("lastEntryId", message.last_entry_id, out);
    if let Some(state) = message.state.and_then(|s| STATES.get(usize::try_from(s - 1).ok()?)) {
        out.extend_from_slice(format!("state: {state}\n").as_bytes());
    }
    for segment in &message.segment {
        out.extend_from_slice(b"segment {\n");
        for member in &segment.ensemble_member {
            quoted("  ensembleMember", member.as_bytes(), out);
        }
        number("  firstEntryId", segment.first_entry_id, out);
        out.extend_from_slice(b"}\n");
    }
    if let Some(digest_type) = message.digest_type.and_then(DigestType::from_number) {
        out.extend_from_slice(format!("digestType: {digest_type}\n").as_bytes());
    }
    if let Some(password) = &message.password {
        quoted("password", password, out);
    }
    number("ackQuorumSize", message.ack_quorum_size.map(i64::from), out);
    number("ctime", message.ctime, out);
    for custom in &message.custom_metadata {
        out.extend_from_slice(b"customMetadata {\n");
        if let Some(key) = &custom.key {
            quoted("  key", key.as_bytes(), out);
        }
        if let Some(value) = &custom.value {
            quoted("  value", value, out);
        }
        out.extend_from_slice(b"}\n");
    }
}

fn quoted(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": \"");
    for &byte in value {
        match byte {
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0b => out.extend_from_slice(b"\\v"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\\' | b'\'' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            0x20..=0x7e => out.push(byte),
            _ => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    out.extend_from_slice(b"\"\n");
}

fn segment_of(node: Node) -> Result<SegmentFormat, Error> {
    let mut segment = SegmentFormat::default();
    for (name, node) in message_of("segment", node)? {
        match name.as_str() {
            "ensembleMember" => segment.ensemble_member.push(string_of(&name, node)?),
            "firstEntryId" => segment.first_entry_id = Some(i64_of(&name, node)?),
            _ => return Err(refuse(format!("field {:?} of a segment is not known here", shorten(&name)))),
        }
    }
    Ok(segment)
}

fn custom_of(node: Node) -> Result<CustomFormat, Error> {
    let mut custom = CustomFormat::default();
    for (name, node) in message_of("customMetadata", node)? {
        match name.as_str() {
            "key" => custom.key = Some(string_of(&name, node)?),
            "value" => custom.value = Some(text_of(&name, node)?),
            _ => return Err(refuse(format!("field {:?} of a custom value is not known here", shorten(&name)))),
        }
    }
    Ok(custom)
}

fn message_of(name: &str, node: Node) -> Result<Vec<(String, Node)>, Error> {
    match node {
        Node::Message(fields) => Ok(fields),
        Node::Word(_) | Node::Text(_) => Err(refuse(format!("field {name} is not a group of fields"))),
    }
}

fn text_of(name: &str, node: Node) -> Result<Bytes, Error> {
    match node {
        Node::Text(text) => Ok(text.into()),
        Node::Word(_) | Node::Message(_) => Err(refuse(format!("field {name} is not a quoted text"))),
    }
}

fn string_of(name: &str, node: Node) -> Result<String, Error> {
    String::from_utf8(text_of(name, node)?.into()).map_err(|_| refuse(format!("field {name} is not UTF-8")))
}

fn word_of(name: &str, node: Node) -> Result<String, Error> {
    match node {
        Node::Word(word) => Ok(word),
        Node::Text(_) | Node::Message(_) => Err(refuse(format!("field {name} is not a number or word"))),
    }
}

fn i64_of(name: &str, node: Node) -> Result<i64, Error> {
    let word = word_of(name, node)?;
    let (negative, digits) = word.strip_prefix('-').map_or((false, word.as_str()), |digits| (true, digits));
    let parsed = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse::<u64>()
    };
    let unsigned_digits = !digits.starts_with(['+', '-']);
    let value = parsed.ok().filter(|_| unsigned_digits).map(i128::from).map(|v| if negative { -v } else { v });
    value
        .and_then(|v| i64::try_from(v).ok())
        .ok_or_else(|| refuse(format!("field {name} is {:?}, not a number", shorten(&word))))
}

fn i32_of(name: &str, node: Node) -> Result<i32, Error> {
    let value = i64_of(name, node)?;
    i32::try_from(value).map_err(|_| refuse(format!("field {name} is {value}, out of range")))
}

fn state_of(node: Node) -> Result<i32, Error> {
    let word = word_of("state", node)?;
    let by_name = STATES.iter().position(|s| *s == word).and_then(|at| i32::try_from(at + 1).ok());
    by_name.map_or_else(|| i32_of("state", Node::Word(word)), Ok)
}

fn digest_type_of(node: Node) -> Result<i32, Error> {
    let word = word_of("digestType", node)?;
    let known = [DigestType::Crc32, DigestType::Hmac, DigestType::Crc32c, DigestType::Dummy];
    let by_name = known.iter().find(|d| d.name() == word).map(|d| d.number());
    by_name.map_or_else(|| i32_of("digestType", Node::Word(word)), Ok)
}

fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}

struct Lexer<'a> {
    rest: &'a [u8],
}

impl Lexer<'_> {
    /// Reads fields up to the end of input (depth 0) or the closing bracket of a group.
    fn fields(&mut self, depth: u8) -> Result<Vec<(String, Node)>, Error> {
        let mut fields = Vec::new();
        loop {
            match self.peek() {
                None if depth == 0 => return Ok(fields),
                None => return Err(refuse("a group of fields is not closed")),
                Some(b'}' | b'>') if depth > 0 => {
                    self.rest = &self.rest[1..];
                    return Ok(fields);
                }
                Some(b',' | b';') => self.rest = &self.rest[1..],
                Some(_) => {
                    let name = self.word()?;
                    let node = self.value(depth)?;
                    fields.push((name, node));
                }
            }
        }
    }

    fn value(&mut self, depth: u8) -> Result<Node, Error> {
        let colon = self.peek() == Some(b':');
        if colon {
            self.rest = &self.rest[1..];
        }
        match self.peek() {
            // Only two levels exist, so nesting needs no stack.
            Some(b'{' | b'<') if depth == 0 => {
                self.rest = &self.rest[1..];
                Ok(Node::Message(self.fields(depth + 1)?))
            }
            Some(b'"' | b'\'') if colon => {
                let mut text = Vec::new();
                while let Some(quote @ (b'"' | b'\'')) = self.peek() {
                    self.rest = &self.rest[1..];
                    self.quoted(quote, &mut text)?;
                }
                Ok(Node::Text(text))
            }
            Some(_) if colon => Ok(Node::Word(self.word()?)),
            _ => Err(refuse("a field has no value")),
        }
    }

    /// The next byte that is neither space nor comment.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let blank = self.rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
            self.rest = &self.rest[blank..];
            if self.rest.first() != Some(&b'#') {
                return self.rest.first().copied();
            }
            let comment = self.rest.iter().take_while(|b| **b != b'\n').count();
            self.rest = &self.rest[comment..];
        }
    }

    fn word(&mut self) -> Result<String, Error> {
        self.peek();
        let len = self
            .rest
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+' | b'.'))
            .count();
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        if word.is_empty() {
            return Err(refuse("malformed text"));
        }
        Ok(String::from_utf8_lossy(word).into_owned())
    }

    /// Reads up to the closing quote.
    fn quoted(&mut self, quote: u8, out: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            match self.next_byte()? {
                b'\n' => return Err(refuse("a quoted text is not closed")),
                byte if byte == quote => return Ok(()),
                b'\\' => {
                    let byte = self.escaped()?;
                    out.push(byte);
                }
                byte => out.push(byte),
            }
        }
    }

    fn escaped(&mut self) -> Result<u8, Error> {
        Ok(match self.next_byte()? {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            byte @ (b'\\' | b'\'' | b'"' | b'?') => byte,
            b'x' | b'X' => {
                let first = self.digit(16).ok_or_else(|| refuse("an escape has no digits"))?;
                let value = self.digit(16).map_or(first, |second| first * 16 + second);
                u8::try_from(value).map_err(|_| refuse("an escape is above 255"))?
            }
            byte @ b'0'..=b'7' => {
                let mut value = u32::from(byte - b'0');
                for _ in 0..2 {
                    if let Some(digit) = self.digit(8) {
                        value = value * 8 + digit;
                    }
                }
                u8::try_from(value).map_err(|_| refuse("an escape is above 255"))?
            }
            _ => return Err(refuse("an escape is not known")),
        })
    }

    fn digit(&mut self, radix: u32) -> Option<u32> {
        let digit = char::from(*self.rest.first()?).to_digit(radix)?;
        self.rest = &self.rest[1..];
        Some(digit)
    }

    fn next_byte(&mut self) -> Result<u8, Error> {
        let (byte, rest) = self.rest.split_first().ok_or_else(|| refuse("a quoted text is not closed"))?;
        self.rest = rest;
        Ok(*byte)
    }
}
