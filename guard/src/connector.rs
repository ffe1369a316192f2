//! The client's part of what is said before a connection is served.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use common::clock::Clock;
use common::net::{BoxStream, Connector};
use proto::Status;
use proto::client::{Greeted, decode_greeting_v3, encode_auth_v3, encode_start_tls_v3};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::config::{ConnectConfig, ConnectTls};
use crate::error::Error;
use crate::files::{CERTIFICATE, Lasting, Named, Reloaded};
use crate::metrics::ConnectMetrics;
use crate::tls::{self, Validity};
use crate::tokens::{TOKEN_PLUGIN, Token};

/// How long an introduction may take, beside the connecting itself.
const INTRODUCTION_DEADLINE: Duration = Duration::from_secs(10);
/// The longest answer to an introduction.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Opens connections over another connector and introduces them: START_TLS, then the token. What it hands on is ready for requests.
pub struct Introduced {
    inner: Arc<dyn Connector>,
    material: Reloaded<Material>,
}

struct Material {
    tls: Option<Arc<ClientConfig>>,
    token: Option<Token>,
    validity: Option<Validity>,
}

impl Lasting for Material {
    fn validity(&self) -> Option<Validity> {
        self.validity
    }
}

impl Introduced {
    /// `inner` as it is when `config` says nothing; else one that introduces its connections, and tells `metrics` of its files.
    ///
    /// # Errors
    /// Settings that do not fit each other, and files that cannot be used, named.
    pub async fn over(
        inner: Arc<dyn Connector>,
        config: &ConnectConfig,
        clock: &Clock,
        metrics: &ConnectMetrics,
    ) -> Result<Arc<dyn Connector>, Error> {
        config.validate()?;
        if config.is_plain() {
            return Ok(inner);
        }
        let files = vec![
            Named::new("authorities of servers' certificates", &config.ca),
            Named::new(CERTIFICATE, &config.certificate),
            Named::new("private key", &config.key),
            Named::new("token", &config.token),
        ];
        let (has_tls, time) = (config.tls != ConnectTls::Off, clock.clone());
        let material = Reloaded::open(
            files,
            clock,
            metrics.0.clone(),
            Box::new(move |contents| {
                let [ca, certificate, key, token] = contents else {
                    return Err(Error::Config("four files were read".to_owned()));
                };
                let token = token.given().map(Token::parse).transpose()?;
                if !has_tls {
                    return Ok(Material { tls: None, token, validity: None });
                }
                let own = certificate.given().zip(key.given());
                let validity = own.map(|(certificate, _)| Validity::of(certificate)).transpose()?;
                Ok(Material { tls: Some(Arc::new(tls::client(ca, own, &time)?)), token, validity })
            }),
        )
        .await?;
        Ok(Arc::new(Self { inner, material }))
    }
}

#[async_trait]
impl Connector for Introduced {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let material = self.material.current().await;
        if material.tls.is_none() && material.token.is_some() && !is_loopback(host(address)) {
            return Err(named(
                address,
                io::ErrorKind::PermissionDenied,
                "the token would go there in clear; set connect.tls",
            ));
        }
        let stream = self.inner.connect(address).await?;
        match tokio::time::timeout(INTRODUCTION_DEADLINE, introduce(stream, address, &material)).await {
            Ok(introduced) => introduced,
            Err(_) => {
                let text = format!("no answer to its introduction within {INTRODUCTION_DEADLINE:?}");
                Err(named(address, io::ErrorKind::TimedOut, &text))
            }
        }
    }
}

async fn introduce(mut stream: BoxStream, address: &str, material: &Material) -> io::Result<BoxStream> {
    if let Some(config) = &material.tls {
        stream = secure(stream, address, config).await?;
    }
    if let Some(token) = &material.token {
        show(&mut stream, address, token).await?;
    }
    Ok(stream)
}

async fn secure(mut stream: BoxStream, address: &str, config: &Arc<ClientConfig>) -> io::Result<BoxStream> {
    let name = ServerName::try_from(host(address).to_owned())
        .map_err(|error| named(address, io::ErrorKind::InvalidInput, &error.to_string()))?;
    let mut request = BytesMut::new();
    encode_start_tls_v3(0, &mut request);
    match ask(&mut stream, address, 0, &request).await? {
        Greeted::StartTls(Status::Ok) => {}
        Greeted::StartTls(status) => {
            let text = format!("the server has no TLS for this connection (it says {status:?} to START_TLS)");
            return Err(named(address, io::ErrorKind::PermissionDenied, &text));
        }
        Greeted::Auth { .. } => return Err(unasked(address)),
    }
    let secured = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
    Ok(Box::new(secured.map_err(|error| named(address, error.kind(), &format!("TLS was not set up: {error}")))?))
}

async fn show(stream: &mut BoxStream, address: &str, token: &Token) -> io::Result<()> {
    let mut request = BytesMut::new();
    encode_auth_v3(1, TOKEN_PLUGIN, token.bytes(), &mut request);
    match ask(stream, address, 1, &request).await? {
        // Of whatever plug-in: one that asks nobody for a token lets everybody in.
        Greeted::Auth { status: Status::Ok, .. } => Ok(()),
        Greeted::Auth { status, .. } => {
            let text = format!("the server does not accept the token ({status:?}); is it in its file of tokens?");
            Err(named(address, io::ErrorKind::PermissionDenied, &text))
        }
        Greeted::StartTls(_) => Err(unasked(address)),
    }
}

/// Sends a request and reads its answer, and nothing behind it: that may belong to TLS.
async fn ask(stream: &mut BoxStream, address: &str, txn: u64, request: &[u8]) -> io::Result<Greeted> {
    let lost = |error: io::Error| named(address, error.kind(), &format!("lost while introducing itself: {error}"));
    stream.write_all(request).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let bytes = stream.read_u32().await.map_err(lost)?;
    let bytes =
        usize::try_from(bytes).ok().filter(|bytes| *bytes <= ANSWER_BYTES_MAX).ok_or_else(|| unasked(address))?;
    let mut answer = vec![0; bytes];
    stream.read_exact(&mut answer).await.map_err(lost)?;
    decode_greeting_v3(txn, Bytes::from(answer))
        .map_err(|error| named(address, io::ErrorKind::InvalidData, &error.to_string()))
}

fn unasked(address: &str) -> io::Error {
    named(address, io::ErrorKind::InvalidData, "the server answers what was not asked")
}

fn named(address: &str, kind: io::ErrorKind, text: &str) -> io::Error {
    io::Error::new(kind, format!("connect to {address}: {text}"))
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_cut_off_and_known_as_this_machine() {
        for (address, expected, loopback) in [
            ("127.0.0.1:3181", "127.0.0.1", true),
            ("[::1]:3181", "::1", true),
            ("localhost:1", "localhost", true),
            ("10.0.0.7:3181", "10.0.0.7", false),
            ("[2001:db8::1]:3181", "2001:db8::1", false),
            ("bookie-1.example:3181", "bookie-1.example", false),
            ("127.0.0.1.example:1", "127.0.0.1.example", false),
        ] {
            assert_eq!((host(address), is_loopback(host(address))), (expected, loopback));
            assert!(ServerName::try_from(expected.to_owned()).is_ok());
        }
    }
}
