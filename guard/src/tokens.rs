//! Tokens: what a caller shows, and whom a server knows.

use std::collections::BTreeSet;
use std::fmt;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use crate::error::Error;
use crate::files::Content;

/// The name of the authentication plug-in that takes tokens.
pub const TOKEN_PLUGIN: &str = "thermocline-token";
/// The longest token.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// The shortest token: whoever reads the server's file could find a shorter one by trying.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Longest name of a caller.
const NAME_BYTES_MAX: usize = 64;
/// The most lines that count.
const LINES_MAX: usize = 10_000;

/// Whom a server lets in: names, and the hash of the token of each.
pub(crate) struct Tokens {
    known: Vec<(String, [u8; 32])>,
}

impl Tokens {
    /// Reads lines of `NAME SHA256`, the hash as 64 hex digits. A name may have several lines, for the time in which its token is
    /// changed; empty lines and lines that begin with `#` are left out.
    pub(crate) fn parse(content: &Content) -> Result<Self, Error> {
        let text = str::from_utf8(&content.bytes).map_err(|_| content.error("is no text"))?;
        let (mut known, mut hashes) = (Vec::new(), BTreeSet::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // The line itself is not shown: somebody may have put the token there.
            let wrong = |why: &str| content.error(format!("line {number}: {why}"));
            let mut words = line.split_whitespace();
            let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
                return Err(wrong("write NAME SHA256"));
            };
            if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_of_name) {
                return Err(wrong("a name has up to 64 letters, digits, '-', '_' and '.'"));
            }
            let hash = unhex(hash).ok_or_else(|| wrong("the second word is the token's SHA-256, 64 hex digits"))?;
            if hash == <[u8; 32]>::from(Sha256::digest(b"")) {
                return Err(wrong("this is the hash of nothing: the file with the token was empty or missing"));
            }
            if !hashes.insert(hash) {
                return Err(wrong("this token has a line already"));
            }
            known.push((name.to_owned(), hash));
            if known.len() > LINES_MAX {
                return Err(content.error("has more than 10000 tokens"));
            }
        }
        if known.is_empty() { Err(content.error("has no token, so nobody could come in")) } else { Ok(Self { known }) }
    }

    /// Whose token it is; nobody's if it is shorter or longer than tokens are. Takes the same time for every token of a length.
    pub(crate) fn holder(&self, token: &[u8]) -> Option<&str> {
        let shown: [u8; 32] = Sha256::digest(token.get(..TOKEN_BYTES_MAX).unwrap_or(token)).into();
        let mut found = u64::MAX;
        for (index, (_, hash)) in (0_u64..).zip(&self.known) {
            found = u64::conditional_select(&found, &index, hash.ct_eq(&shown));
        }
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
            return None;
        }
        usize::try_from(found).ok().and_then(|index| self.known.get(index)).map(|(name, _)| name.as_str())
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = (digit(0)? << 4) | digit(1)?;
    }
    Some(bytes)
}

/// The token that a client shows.
pub(crate) struct Token(Bytes);

impl Token {
    /// Reads a file that holds the token alone; white space around it does not count.
    pub(crate) fn parse(content: &Content) -> Result<Self, Error> {
        let token = content.bytes.trim_ascii();
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
            let cause = format!("holds {} bytes; a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}", token.len());
            return Err(content.error(cause));
        }
        Ok(Self(Bytes::copy_from_slice(token)))
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::files::Named;

    fn content(bytes: impl Into<Vec<u8>>) -> Content {
        Content { named: Named::new("tokens", Path::new("some.file")), bytes: bytes.into() }
    }

    fn refused(text: &str) -> String {
        Tokens::parse(&content(text)).err().map(|error| error.to_string()).unwrap()
    }

    // printf 0123456789abcdef | sha256sum
    const HASH: &str = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
    const TOKEN: &[u8] = b"0123456789abcdef";

    #[test]
    fn a_token_is_known_by_its_hash() {
        let old = "0".repeat(64);
        let tokens = Tokens::parse(&content(format!("# who may\n\nwriter-1 {old}\n writer-1\t{HASH}\r\n"))).unwrap();
        assert_eq!(tokens.holder(TOKEN), Some("writer-1"));
        let upper = Tokens::parse(&content(format!("a {}", HASH.to_uppercase()))).unwrap();
        assert_eq!(upper.holder(TOKEN), Some("a"));
        for other in [&b""[..], b"0123456789abcdeg", b"0123456789abcdef ", HASH.as_bytes(), &[0; TOKEN_BYTES_MAX + 1]] {
            assert_eq!(tokens.holder(other), None);
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_is_too_short_for_a_token_lets_nobody_in() {
        let short = &TOKEN[1..];
        let tokens = Tokens::parse(&content(format!("a {}", hex(&Sha256::digest(short))))).unwrap();
        assert_eq!(tokens.holder(short), None);
    }

    #[test]
    fn lines_that_say_something_else_are_named_and_not_quoted() {
        for (text, why) in [
            ("", "no token"),
            ("# nobody", "no token"),
            ("writer", "line 1: write NAME SHA256"),
            (&format!("\nwriter {HASH} more"), "line 2: write NAME SHA256"),
            ("writer hunter2hunter2hunter2", "line 1: the second word"),
            (&format!("wri/ter {HASH}"), "line 1: a name"),
            (&format!("{} {HASH}", "x".repeat(65)), "line 1: a name"),
            (&format!("writer {}g", &HASH[..63]), "line 1: the second word"),
            (&format!("a {HASH}\nb {HASH}"), "line 2: this token has a line already"),
            // As `sha256sum` says of an empty file.
            (&format!("a {}", hex(&Sha256::digest(b""))), "line 1: this is the hash of nothing"),
        ] {
            let told = refused(text);
            assert!(told.starts_with("tokens some.file: ") && told.contains(why), "{told}");
            assert!(!told.contains("hunter2") && !told.contains(&HASH[..20]), "{told}");
        }
        assert!(Tokens::parse(&content([0xff, 0xfe])).is_err());
    }

    #[test]
    fn a_clients_token_is_what_the_file_holds_but_white_space() {
        let token = Token::parse(&content([b"  ", TOKEN, b"\n"].concat())).unwrap();
        assert_eq!(token.bytes(), TOKEN);
        assert!(!format!("{token:?}").contains("0123"));
        for wrong in [Vec::new(), TOKEN[1..].to_vec(), vec![b'x'; TOKEN_BYTES_MAX + 1]] {
            let told = Token::parse(&content(wrong)).unwrap_err().to_string();
            assert!(told.contains("16 to 4096") && !told.contains("xxxx"), "{told}");
        }
    }
}
