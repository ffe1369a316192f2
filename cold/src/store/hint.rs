//! What the words of a store's refusal tell that its status does not.

use std::error::Error as StdError;

use crate::error::ErrorKind;

/// Whether an error or one of its causes says a word.
pub(super) fn says(error: &dyn StdError, word: &str) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains(word) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What kind of refusal this is, and what to do, when its words tell.
pub(super) fn of(error: &object_store::Error) -> Option<(ErrorKind, String)> {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push('\n');
        text.push_str(&error.to_string());
        cause = error.source();
    }
    of_words(&text)
}

fn of_words(text: &str) -> Option<(ErrorKind, String)> {
    let any = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if any(&[
        "AuthorizationHeaderMalformed",
        "PermanentRedirect",
        "IllegalLocationConstraint",
        "incorrectly configured region",
    ]) {
        let advice = match expected_region(text) {
            Some(region) => {
                format!(
                    "the region is wrong: the bucket is in {region}; set AWS_REGION={region} or add ?region={region} to the URL"
                )
            }
            None => "the store sends this elsewhere: region or endpoint are wrong; correct AWS_REGION or AWS_ENDPOINT"
                .to_owned(),
        };
        return Some((ErrorKind::Config, advice));
    }
    if any(&["RequestTimeTooSkewed"]) {
        let advice = "the clocks of this machine and of the store are too far apart; set this machine's by NTP";
        return Some((ErrorKind::Denied, advice.to_owned()));
    }
    if any(&["SignatureDoesNotMatch"]) {
        let advice = "the store computes another signature: check the secret key, and the region";
        return Some((ErrorKind::Denied, advice.to_owned()));
    }
    if any(&["InvalidAccessKeyId", "NotSignedUp"]) {
        return Some((
            ErrorKind::Denied,
            "the store does not know this access key; check it, and the endpoint".to_owned(),
        ));
    }
    if any(&["ExpiredToken"]) {
        return Some((ErrorKind::Denied, "the credentials have expired; renew them".to_owned()));
    }
    if any(&["NotImplemented", "501 Not Implemented"]) {
        let advice = "the store does not know something this request asks for; if that is a checksum, say ?checksum=none in the URL";
        return Some((ErrorKind::Config, advice.to_owned()));
    }
    None
}

/// The region a refusal names, in one of the forms stores use.
fn expected_region(text: &str) -> Option<&str> {
    let between = |begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin)?;
        let (region, _) = rest.split_once(end)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (!region.is_empty() && region.len() < 64 && region.bytes().all(plain)).then_some(region)
    };
    between("expecting '", "'")
        .or_else(|| between("expecting &apos;", "&apos;"))
        .or_else(|| between("expecting &#39;", "&#39;"))
        .or_else(|| between("<Region>", "</Region>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_region_is_named() {
        for text in [
            "AuthorizationHeaderMalformed: the region 'us-east-1' is wrong; expecting 'eu-central-1'",
            "AuthorizationHeaderMalformed: the region is wrong; expecting &apos;eu-central-1&apos;",
            "<Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region>",
        ] {
            let (kind, advice) = of_words(text).unwrap();
            assert_eq!(kind, ErrorKind::Config);
            assert!(advice.contains("AWS_REGION=eu-central-1"), "{advice}");
        }
        let (kind, advice) =
            of_words("Received redirect, this normally indicates an incorrectly configured region").unwrap();
        assert_eq!(kind, ErrorKind::Config);
        assert!(advice.contains("AWS_REGION"), "{advice}");
        assert_eq!(expected_region("expecting '<script>'"), None);
    }

    #[test]
    fn other_words() {
        assert_eq!(of_words("SignatureDoesNotMatch").unwrap().0, ErrorKind::Denied);
        assert!(of_words("RequestTimeTooSkewed").unwrap().1.contains("clocks"));
        assert_eq!(of_words("503 SlowDown"), None);
    }
}
