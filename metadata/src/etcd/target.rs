//! Which etcd: the URI, and what stands in the environment because it does not belong into a URI.

use std::fmt;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use super::names::WORDS;
use crate::{Error, ErrorKind, Key, LedgerLayout};

const PORT: u16 = 2379;

/// What every cluster's keys begin with, below its root.
const OWN_SEGMENTS: [&str; 2] = ["ledgers", "thermocline"];

const USER: &str = "THERMOCLINE_ETCD_USER";
const PASSWORD: &str = "THERMOCLINE_ETCD_PASSWORD";
const CA_FILE: &str = "THERMOCLINE_ETCD_CA_FILE";
const CERT_FILE: &str = "THERMOCLINE_ETCD_CERT_FILE";
const KEY_FILE: &str = "THERMOCLINE_ETCD_KEY_FILE";

/// Endpoints, root and layout, as in `etcd+apache://host:port,host:port/root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// `host:port`, at least one.
    pub(crate) endpoints: Vec<String>,
    /// Put before every key: empty, or a path that begins with a slash.
    pub(crate) root: String,
    pub(crate) tls: bool,
    /// The layout that the URI wants; `None`: whatever the cluster has.
    pub(crate) layout: Option<LedgerLayout>,
}

/// What stands behind `etcd` or `etcds` in a URI's scheme.
const LAYOUTS: [(&str, Option<LedgerLayout>); 5] = [
    ("", None),
    // As BookKeeper writes it.
    ("+null", None),
    ("+apache", Some(LedgerLayout::Etcd)),
    ("+hierarchical", Some(LedgerLayout::Hierarchical)),
    ("+longhierarchical", Some(LedgerLayout::LongHierarchical)),
];

impl Target {
    /// Takes a URI apart. Messages never repeat one that holds a password.
    pub(crate) fn parse(uri: &str) -> Result<Self, Error> {
        let refuse = |fault: &str| Err(Error::new(ErrorKind::Invalid, format!("read etcd URI: {fault}")));
        let (scheme, place) = uri.split_once("://").unwrap_or_default();
        let (tls, word) = match (scheme.strip_prefix("etcds"), scheme.strip_prefix("etcd")) {
            (Some(word), _) => (true, word),
            (None, Some(word)) => (false, word),
            (None, None) => return refuse("it does not begin with etcd:// or etcds://"),
        };
        let Some((_, layout)) = LAYOUTS.iter().find(|(known, _)| *known == word) else {
            return refuse(
                "the layouts it can name are etcd+apache://, etcd+hierarchical:// and etcd+longhierarchical://",
            );
        };
        if place.contains('@') {
            return refuse(&format!(
                "it names a user; secrets do not belong in URIs, put them into the environment as {USER} and {PASSWORD}"
            ));
        }
        if place.contains(['?', '#']) {
            return refuse(&format!("{uri:?} has options, etcd takes none"));
        }
        let (hosts, root) = place.find('/').map_or((place, ""), |slash| place.split_at(slash));
        let root = root.trim_end_matches('/');
        if !root.is_empty() {
            Key::new(root)
                .map_err(|error| Error::new(ErrorKind::Invalid, "read etcd URI: its root").caused_by(error))?;
            // A cluster below another one's keys would be taken for them: removed and copied with it. The last segment is looked at
            // when it is known what lies there.
            let above = root.rsplit_once('/').map_or("", |(above, _)| above);
            let taken = |segment: &&str| OWN_SEGMENTS.contains(segment);
            let in_driver = |segment: &&str| *layout == Some(LedgerLayout::Etcd) && WORDS.contains(segment);
            let segments = above.split('/').find(|segment| taken(segment) || in_driver(segment));
            if let Some(segment) = segments.or_else(|| root.ends_with("/thermocline").then_some("thermocline")) {
                return refuse(&below_another(root, segment));
            }
        } else if *layout == Some(LedgerLayout::Etcd) {
            return refuse("BookKeeper's layout needs a root, as in etcd+apache://10.0.0.1:2379/bookkeeper");
        }
        let mut endpoints = Vec::new();
        for host in hosts.split(',') {
            let Some(endpoint) = endpoint(host) else {
                return refuse(&format!("{host:?} is no host:port, as in etcd://10.0.0.1:2379,10.0.0.2:2379/root"));
            };
            endpoints.push(endpoint);
        }
        Ok(Self { endpoints, root: root.to_owned(), tls, layout: *layout })
    }
}

pub(super) fn below_another(root: &str, segment: &str) -> String {
    format!("its root {root:?} has the segment {segment:?}, below which clusters keep their keys")
}

/// `host:port` with the port that etcd's clients use by default; `None` for what is neither.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        // An address of IPv6 without a port ends in its bracket.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, PORT),
    };
    let plain = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == ':');
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = bracketed.map_or(plain, |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (fits && port != 0).then(|| format!("{host}:{port}"))
}

/// Who we are to etcd, and whom we trust.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) user: Option<(String, String)>,
    /// PEM texts.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Shows no secret.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("user", &self.user.as_ref().map(|(user, _)| user)).finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn from_environment() -> Result<Self, Error> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        let pair = |first: &str, second: &str| match (variable(first), variable(second)) {
            (Some(one), Some(two)) => Ok(Some((one, two))),
            (None, None) => Ok(None),
            _ => Err(invalid(format!("read the environment: {first} and {second} go together, one is missing"))),
        };
        let file = |name: &str, path: &str| {
            std::fs::read(path).map_err(|error| invalid(format!("read {path:?} named by {name}")).caused_by(error))
        };
        let ca = variable(CA_FILE).map(|path| file(CA_FILE, &path)).transpose()?;
        let identity = pair(CERT_FILE, KEY_FILE)?
            .map(|(cert, key)| Ok::<_, Error>((file(CERT_FILE, &cert)?, file(KEY_FILE, &key)?)))
            .transpose()?;
        Ok(Self { user: pair(USER, PASSWORD)?, ca, identity })
    }

    pub(super) fn apply(&self, mut options: ConnectOptions, tls: bool) -> ConnectOptions {
        if let Some((user, password)) = &self.user {
            // A token ends with the member that gave it. Asking anew is safe for every call: etcd looks at the token first.
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        if tls {
            let mut tls = match &self.ca {
                Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
                None => TlsOptions::new().with_native_roots(),
            };
            if let Some((cert, key)) = &self.identity {
                tls = tls.identity(Identity::from_pem(cert, key));
            }
            options = options.with_tls(tls);
        }
        options
    }
}
