//! Authorities, files, and a server behind a guard that gives back what it is sent.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use common::clock::{Clock, ManualClock};
use common::net::{BoxStream, Connector as _, MemoryNetwork};
use common::shutdown::TaskTree;
use proto::FrameDecoder;
use rcgen::{BasicConstraints, Certificate, CertificateParams, DistinguishedName, IsCa, KeyPair, date_time_ymd};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::metrics::Ended;
use crate::{ConnectConfig, ConnectTls, Guard, GuardConfig, GuardTls};

/// The host of the server, and its address.
pub(super) const HOST: &str = "bookie.test";
pub(super) const ADDRESS: &str = "bookie.test:3181";
pub(super) const TOKEN: &str = "a token of the first writer";
/// 2030-01-01, when the certificates here are valid.
const NOW_MS: u64 = 1_893_456_000_000;

/// Who issues certificates.
pub(super) struct Authority {
    certificate: Certificate,
    key: KeyPair,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap(), key }
    }

    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for these names, valid from 2029 to the end of 2031, and its key.
    pub(super) fn issue(&self, names: &[&str]) -> (String, String) {
        self.issue_for(names, 2029..=2031)
    }

    /// A certificate for these names, valid from the first day of the first year to the last one of the last, and its key.
    pub(super) fn issue_for(&self, names: &[&str], years: RangeInclusive<i32>) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(*years.start(), 1, 1);
        params.not_after = date_time_ymd(*years.end(), 12, 31);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.certificate, &self.key).unwrap().pem(), key.serialize_pem())
    }
}

/// Files of a test, an authority, and the time.
pub(super) struct World {
    dir: TempDir,
    pub(super) authority: Authority,
    pub(super) clock: Clock,
    pub(super) hand: ManualClock,
    pub(super) network: MemoryNetwork,
    pub(super) tasks: TaskTree,
}

impl World {
    pub(super) fn new() -> Self {
        let (clock, hand) = Clock::manual(NOW_MS);
        Self {
            dir: tempfile::tempdir().unwrap(),
            authority: Authority::new("authority"),
            clock,
            hand,
            network: MemoryNetwork::new(),
            tasks: TaskTree::root("test"),
        }
    }

    pub(super) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Two files: a certificate for these names and its key.
    pub(super) fn issued(&self, by: &Authority, stem: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let (certificate, key) = by.issue(names);
        (self.file(&format!("{stem}.pem"), &certificate), self.file(&format!("{stem}.key"), &key))
    }

    /// A server's settings; with TLS, for [`HOST`].
    pub(super) fn guard(&self, tls: GuardTls, tokens: bool) -> GuardConfig {
        let mut config = GuardConfig { tls, ..GuardConfig::default() };
        if tls != GuardTls::Off {
            (config.certificate, config.key) = self.issued(&self.authority, "server", &[HOST]);
        }
        if tokens {
            config.tokens = self.file("tokens", &line("writer-1", TOKEN));
        }
        config
    }

    /// A client's settings that fit [`World::guard`].
    pub(super) fn connect(&self, tls: bool, token: Option<&str>) -> ConnectConfig {
        let mut config = ConnectConfig::default();
        if tls {
            config.tls = ConnectTls::Required;
            config.ca = self.file("ca.pem", &self.authority.pem());
        }
        if let Some(token) = token {
            config.token = self.file("token", token);
        }
        config
    }

    /// Starts a server at [`ADDRESS`] that gives back what it is sent.
    pub(super) async fn serve(&self, config: &GuardConfig) -> Served {
        self.serve_behind(&Guard::open(config, &self.clock).await.unwrap().unwrap())
    }

    /// As [`World::serve`], behind a guard that is there.
    pub(super) fn serve_behind(&self, guard: &Arc<Guard>) -> Served {
        let mut listener = guard.listen(Box::new(self.network.listen(ADDRESS)), &self.tasks);
        assert_eq!(listener.address(), ADDRESS);
        let (told, peers) = mpsc::unbounded_channel();
        let tasks = self.tasks.clone();
        self.tasks.spawn("serve", async move {
            while let Ok((stream, peer)) = listener.accept().await {
                told.send(peer).unwrap();
                tasks.spawn("echo", async move {
                    let (mut input, mut output) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut input, &mut output).await;
                    let _ = output.shutdown().await;
                });
            }
        });
        Served { guard: Arc::clone(guard), peers }
    }

    /// A connection on which nothing was said.
    pub(super) async fn raw(&self) -> Raw {
        Raw::new(self.network.connect(ADDRESS).await.unwrap())
    }
}

/// A line of a server's file of tokens.
pub(super) fn line(name: &str, token: &str) -> String {
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {hash}\n")
}

/// A server behind its guard.
pub(super) struct Served {
    pub(super) guard: Arc<Guard>,
    pub(super) peers: mpsc::UnboundedReceiver<String>,
}

impl Served {
    /// Who came in next.
    pub(super) async fn peer(&mut self) -> String {
        tokio::time::timeout(Duration::from_secs(60), self.peers.recv()).await.unwrap().unwrap()
    }

    /// Waits until so many connections have ended so, and no more.
    pub(super) async fn counted(&self, how: Ended, count: u64) {
        let reached = async {
            while self.guard.counts().count(how) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(20), reached).await;
        assert_eq!(self.guard.counts().count(how), count, "{how:?}");
    }

    pub(super) fn nobody_came_in(&mut self) -> bool {
        self.peers.try_recv().is_err()
    }
}

/// A connection that sends what it likes.
pub(super) struct Raw {
    pub(super) stream: BoxStream,
    input: BytesMut,
}

impl Raw {
    pub(super) fn new(stream: BoxStream) -> Self {
        Self { stream, input: BytesMut::new() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next frame, length word included; `None` at the end of the connection.
    pub(super) async fn frame(&mut self) -> Option<Bytes> {
        let mut decoder = FrameDecoder::new(1 << 20);
        loop {
            let mut ahead = self.input.clone();
            if let Some(payload) = decoder.decode(&mut ahead).unwrap() {
                let whole = self.input.copy_to_bytes(payload.len() + 4);
                return Some(whole);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Sends `bytes` and expects them back.
    pub(super) async fn is_served(&mut self, bytes: &[u8]) {
        self.send(bytes).await;
        self.gets(bytes).await;
    }

    /// Expects `bytes` next.
    pub(super) async fn gets(&mut self, bytes: &[u8]) {
        while self.input.len() < bytes.len() {
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0, "closed");
        }
        assert_eq!(self.input.split_to(bytes.len()), bytes);
    }

    /// Expects the end, and nothing before it.
    pub(super) async fn is_closed(&mut self) {
        assert_eq!(self.frame().await, None);
        assert!(self.input.is_empty(), "{:?}", self.input);
    }
}

/// Gives a file another content.
pub(super) fn replace(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
