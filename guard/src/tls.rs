//! From PEM files to what rustls takes.
//!
//! TLS 1.2 and 1.3, with rustls' choice of algorithms. No session is resumed: connections are few and long, and each one shows its
//! certificate anew.

use std::sync::Arc;
use std::time::Duration;

use common::clock::Clock;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{Error as PemError, PemObject as _};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_cert::der::Decode as _;
use x509_cert::time::Time;

use crate::error::Error;
use crate::files::Content;

/// Time as it is passed in here.
#[derive(Debug)]
struct Wall(Clock);

impl TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.wall_ms())))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The server's side; with `client_ca`, clients must have a certificate of one of those authorities.
pub(crate) fn server(
    certificate: &Content,
    key: &Content,
    client_ca: Option<&Content>,
    clock: &Clock,
) -> Result<ServerConfig, Error> {
    let refused = |cause: &dyn std::fmt::Display| Error::tls(&certificate.named.path, cause);
    let provider = provider();
    let builder = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::new(Wall(clock.clone())))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error))?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(client_ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(client_ca)?), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| client_ca.error(error))?)
        }
    };
    let mut config = builder.with_single_cert(chain(certificate)?, private(key)?).map_err(|error| refused(&error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The client's side: servers must have a certificate of one of the authorities in `ca`; `own` is the client's, with its key.
pub(crate) fn client(ca: &Content, own: Option<(&Content, &Content)>, clock: &Clock) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(Wall(clock.clone())))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::tls(&ca.named.path, error))?
        .with_root_certificates(roots(ca)?);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(chain(certificate)?, private(key)?)
            .map_err(|error| Error::tls(&certificate.named.path, error))?,
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// When a certificate can be used: seconds since 1970, both of them included (RFC 5280, 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    begin: u64,
    pub(crate) end: u64,
}

impl Validity {
    /// Of the first certificate of a file, which is the one that is shown.
    pub(crate) fn of(certificate: &Content) -> Result<Self, Error> {
        let unread = |error: x509_cert::der::Error| certificate.error(format!("is no X.509 certificate: {error}"));
        let shown = chain(certificate)?.into_iter().next().unwrap_or_else(|| CertificateDer::from(Vec::new()));
        let shown = x509_cert::Certificate::from_der(&shown).map_err(unread)?;
        let validity = shown.tbs_certificate().validity();
        let seconds = |time: &Time| time.to_unix_duration().as_secs();
        Ok(Self { begin: seconds(&validity.not_before), end: seconds(&validity.not_after) })
    }

    /// Why it cannot be used at a moment; `None` when it can be.
    pub(crate) fn refuses(self, now: u64) -> Option<&'static str> {
        if now < self.begin {
            Some("is not valid yet")
        } else if now > self.end {
            Some("is not valid any more")
        } else {
            None
        }
    }
}

fn chain(content: &Content) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&content.bytes).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(content.error("has no PEM certificate (BEGIN CERTIFICATE)")),
    }
}

fn private(content: &Content) -> Result<PrivateKeyDer<'static>, Error> {
    // The cause is left out: it may quote a line of the file.
    PrivateKeyDer::from_pem_slice(&content.bytes)
        .map_err(|_| content.error("has no unencrypted PEM private key (BEGIN PRIVATE KEY)"))
}

fn roots(content: &Content) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(content)? {
        roots.add(certificate).map_err(|error| content.error(error))?;
    }
    Ok(roots)
}
