//! Checksums that requests bring along, and those the server answers with.

use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::Checksum;
use s3s::{S3Error, S3Result, s3_error};

use super::blob::Blob;

/// The checksums a request says its body has, in base64.
#[derive(Debug, Clone, Default)]
pub(super) struct Claimed {
    pub(super) md5: Option<String>,
    pub(super) sums: Checksum,
    /// The algorithm of an upload in parts, or of a sum that comes in a trailer.
    pub(super) algorithm: Option<String>,
}

impl Claimed {
    /// Takes up the sums that came behind the body.
    pub(super) fn add_trailers(&mut self, trailers: &HeaderMap) {
        let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let sums = &mut self.sums;
        for (name, sum) in [
            ("x-amz-checksum-crc32", &mut sums.checksum_crc32),
            ("x-amz-checksum-crc32c", &mut sums.checksum_crc32c),
            ("x-amz-checksum-crc64nvme", &mut sums.checksum_crc64nvme),
            ("x-amz-checksum-sha1", &mut sums.checksum_sha1),
            ("x-amz-checksum-sha256", &mut sums.checksum_sha256),
        ] {
            if sum.is_none() {
                *sum = text(name);
            }
        }
    }

    /// Computes what was claimed over the body that arrived.
    ///
    /// # Errors
    /// `BadDigest` when one of them differs.
    pub(super) fn verify(&self, body: &Blob) -> S3Result<Checksum> {
        let sums = &self.sums;
        let wants = |name: &str, sum: &Option<String>| sum.is_some() || self.algorithm.as_deref() == Some(name);
        let mut hasher = ChecksumHasher {
            crc32: wants("CRC32", &sums.checksum_crc32).then(Crc32::new),
            crc32c: wants("CRC32C", &sums.checksum_crc32c).then(Crc32c::new),
            crc64nvme: wants("CRC64NVME", &sums.checksum_crc64nvme).then(Crc64Nvme::new),
            sha1: wants("SHA1", &sums.checksum_sha1).then(Sha1::new),
            sha256: wants("SHA256", &sums.checksum_sha256).then(Sha256::new),
        };
        let mut md5 = self.md5.as_ref().map(|_| Md5::new());
        for piece in body.pieces() {
            hasher.update(piece);
            if let Some(md5) = &mut md5 {
                md5.update(piece);
            }
        }
        let found = hasher.finalize();
        let md5 = md5.map(|md5| base64(md5.finalize().as_ref()));
        for (name, claimed, found) in [
            ("Content-MD5", &self.md5, &md5),
            ("CRC32", &sums.checksum_crc32, &found.checksum_crc32),
            ("CRC32C", &sums.checksum_crc32c, &found.checksum_crc32c),
            ("CRC64NVME", &sums.checksum_crc64nvme, &found.checksum_crc64nvme),
            ("SHA1", &sums.checksum_sha1, &found.checksum_sha1),
            ("SHA256", &sums.checksum_sha256, &found.checksum_sha256),
        ] {
            if claimed.is_some() && claimed != found {
                return Err(s3_error!(BadDigest, "The {name} you specified did not match the calculated checksum."));
            }
        }
        Ok(found)
    }
}

/// The algorithms an upload in parts can be begun with.
pub(super) fn known_algorithm(name: &str) -> Result<&'static str, S3Error> {
    ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]
        .into_iter()
        .find(|known| *known == name)
        .ok_or_else(|| s3_error!(InvalidRequest, "Checksum algorithm {name} is not supported."))
}

/// The sum of `sums` that `algorithm` names.
pub(super) fn of<'a>(sums: &'a Checksum, algorithm: &str) -> Option<&'a String> {
    match algorithm {
        "CRC32" => sums.checksum_crc32.as_ref(),
        "CRC32C" => sums.checksum_crc32c.as_ref(),
        "CRC64NVME" => sums.checksum_crc64nvme.as_ref(),
        "SHA1" => sums.checksum_sha1.as_ref(),
        "SHA256" => sums.checksum_sha256.as_ref(),
        _ => None,
    }
}

/// The sum of an object made of parts: of all its bytes for CRC-64, of the parts' sums (`…-3` for three) for the others.
pub(super) fn of_parts(algorithm: &str, whole: &Blob, parts: &[&Checksum]) -> Checksum {
    if algorithm == "CRC64NVME" {
        let mut crc = Crc64Nvme::new();
        whole.pieces().iter().for_each(|piece| crc.update(piece));
        return Checksum { checksum_crc64nvme: Some(base64(&crc.finalize())), ..Checksum::default() };
    }
    let joined: Vec<u8> =
        parts.iter().filter_map(|sums| of(sums, algorithm)).flat_map(|sum| from_base64(sum)).collect();
    let sum = |bytes: &[u8]| Some(format!("{}-{}", base64(bytes), parts.len()));
    let mut sums = Checksum::default();
    match algorithm {
        "CRC32" => sums.checksum_crc32 = sum(&Crc32::checksum(&joined)),
        "CRC32C" => sums.checksum_crc32c = sum(&Crc32c::checksum(&joined)),
        "SHA1" => sums.checksum_sha1 = sum(&Sha1::checksum(&joined)),
        "SHA256" => sums.checksum_sha256 = sum(&Sha256::checksum(&joined)),
        _ => {}
    }
    sums
}

/// A tag of some content: equal for equal content.
pub(super) fn etag(body: &Blob) -> String {
    let mut crc = Crc64Nvme::new();
    body.pieces().iter().for_each(|piece| crc.update(piece));
    format!("{:016x}{}", body.bytes(), hex::encode(crc.finalize()))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// What the text stands for; letters that are none of base64 are passed over.
fn from_base64(text: &str) -> Vec<u8> {
    let letters = text.bytes().filter_map(|byte| ALPHABET.iter().position(|letter| *letter == byte));
    let (mut word, mut bits, mut bytes) = (0u32, 0, Vec::new());
    for letter in letters {
        word = word << 6 | letter as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits & 255) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn base64_is_that_of_the_standard_and_comes_back() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded), plain.as_bytes());
        }
    }

    #[test]
    fn what_was_claimed_is_verified() {
        let mut body = Blob::default();
        body.push(Bytes::from_static(b"hello "));
        body.push(Bytes::from_static(b"world"));
        let mut claimed = Claimed { md5: Some("XrY7u+Ae7tCTyyK7j1rNww==".to_owned()), ..Claimed::default() };
        claimed.sums.checksum_crc32c = Some("yZRlqg==".to_owned());
        claimed.verify(&body).unwrap();
        claimed.md5 = Some("XrY7u+Ae7tCTyyK7j1rNwg==".to_owned());
        assert_eq!(claimed.verify(&body).unwrap_err().code().as_str(), "BadDigest");
        claimed.md5 = None;
        claimed.sums.checksum_crc32c = Some("yZRlqA==".to_owned());
        assert_eq!(claimed.verify(&body).unwrap_err().code().as_str(), "BadDigest");
    }
}
