//! The server's part of what is said before a connection is served.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use common::net::BoxStream;
use proto::{Demands, FRAME_BYTES_MAX_DEFAULT, FrameDecoder, GREETING_HEAD_BYTES, Greeter, Step};
use rustls::ServerConfig;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use crate::files::Lasting;
use crate::metrics::{Ended, Metrics};
use crate::stream::Prefixed;
use crate::tls::Validity;
use crate::tokens::Tokens;

/// How long a connection may take until it is let in.
pub const GREETING_DEADLINE: Duration = Duration::from_secs(10);

/// How long a server that lets everybody in waits for the first byte: some clients open connections before they need them.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A frame that is waited for whole: START_TLS, or an authentication with the longest token and room to spare. Longer ones are
/// requests, whose first bytes are enough to refuse them.
const WHOLE_FRAME_BYTES: usize = 16 << 10;
/// Bytes of a length word.
const LENGTH_BYTES: usize = 4;
/// Room for a read.
const READ_BYTES: usize = 1 << 10;
/// Requests that are refused before the connection is closed.
const REFUSALS_MAX: usize = 64;

/// What a greeting needs; of one moment, since files may change.
pub(crate) struct Material {
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) validity: Option<Validity>,
}

impl Lasting for Material {
    fn validity(&self) -> Option<Validity> {
        self.validity
    }
}

/// A connection that was not let in, and why.
#[derive(Debug)]
pub(crate) enum Denied {
    /// Its peer said nothing more.
    Left(Option<io::Error>),
    /// It took too long.
    Late,
    /// Too many of its host are being greeted.
    Crowd,
    /// TLS could not be set up.
    Handshake(io::Error),
    /// It showed a token of nobody.
    Token,
    /// It said what it must not.
    Broke(String),
}

impl Denied {
    pub(crate) fn counted(&self) -> Ended {
        match self {
            Self::Left(_) => Ended::Left,
            Self::Late => Ended::Late,
            Self::Crowd => Ended::Crowd,
            Self::Handshake(_) => Ended::Handshake,
            Self::Token => Ended::Token,
            Self::Broke(_) => Ended::Broke,
        }
    }

    /// Whether an operator should hear of it: somebody tried what is not allowed, or is not configured as the server is.
    pub(crate) fn is_notable(&self) -> bool {
        !matches!(self, Self::Left(_))
    }
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Self {
        Self::Left(Some(error))
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left(None) => f.write_str("the peer closed the connection"),
            Self::Left(Some(error)) => write!(f, "the connection was lost: {error}"),
            Self::Crowd => f.write_str("too many connections of its host have not been let in yet"),
            Self::Late => write!(f, "it was not let in within {GREETING_DEADLINE:?}"),
            Self::Handshake(error) => write!(f, "TLS was not set up: {error}"),
            Self::Token => f.write_str("it showed a token that is not known here"),
            Self::Broke(why) => f.write_str(why),
        }
    }
}

/// A connection that may be served.
pub(crate) struct Admitted {
    pub(crate) stream: BoxStream,
    /// What it has shown; empty when nothing.
    pub(crate) shown: String,
    pub(crate) ended: Ended,
}

/// Hears what a connection has to say and lets it in, or says why not; never longer than [`GREETING_DEADLINE`].
pub(crate) async fn greet(
    stream: BoxStream,
    demands: &Demands,
    material: &Material,
    metrics: &Metrics,
) -> Result<Admitted, Denied> {
    let greeting = Greeting {
        greeter: Greeter::new(demands.clone()),
        material,
        metrics,
        stream,
        buffer: BytesMut::new(),
        decoder: FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT),
        secured: None,
        refusals: 0,
    };
    tokio::time::timeout(GREETING_DEADLINE, greeting.run()).await.unwrap_or(Err(Denied::Late))
}

struct Greeting<'a> {
    greeter: Greeter,
    material: &'a Material,
    metrics: &'a Metrics,
    stream: BoxStream,
    /// What was read; the frame at hand is at its front.
    buffer: BytesMut,
    decoder: FrameDecoder,
    /// With TLS: what the peer's certificate is, if it has one.
    secured: Option<Option<String>>,
    refusals: usize,
}

impl Greeting<'_> {
    async fn run(mut self) -> Result<Admitted, Denied> {
        loop {
            if self.greeter.is_done() {
                return Ok(self.admit(None));
            }
            let Some((frame_bytes, whole)) = self.frame().await? else { return Ok(self.admit(None)) };
            let end = frame_bytes.min(self.buffer.len());
            match self.greeter.step(&self.buffer[LENGTH_BYTES..end], whole) {
                Step::Serve => return Ok(self.admit(None)),
                Step::Close(reason) => return Err(Denied::Broke(reason.to_string())),
                Step::Refuse(answer) => {
                    self.metrics.request_refused();
                    self.refusals += 1;
                    if self.refusals > REFUSALS_MAX {
                        return Err(Denied::Broke(format!(
                            "{REFUSALS_MAX} requests were refused before it was let in"
                        )));
                    }
                    self.skip(frame_bytes).await?;
                    self.send(&answer).await?;
                }
                Step::StartTls(answer) => {
                    self.skip(frame_bytes).await?;
                    if !self.buffer.is_empty() {
                        let why = "bytes in clear behind START_TLS, which would have been taken for its own";
                        return Err(Denied::Broke(why.to_owned()));
                    }
                    self.send(&answer).await?;
                    self = self.secure().await?;
                }
                Step::Authenticate { payload, reply } => {
                    self.skip(frame_bytes).await?;
                    let holder = self.material.tokens.as_ref().and_then(|tokens| tokens.holder(&payload));
                    let Some(holder) = holder else {
                        if let Some(answer) = reply.refused() {
                            // It is what it is, whether or not its peer still listens.
                            let _ = self.send(&answer).await;
                            let _ = self.stream.shutdown().await;
                        }
                        return Err(Denied::Token);
                    };
                    self.send(&reply.accepted()).await?;
                    return Ok(self.admit(Some(holder)));
                }
            }
        }
    }

    /// Reads until the front of the buffer holds a frame that can be decided about: its bytes, length word included, and whether
    /// it is there whole. `None` when the server is to decide.
    async fn frame(&mut self) -> Result<Option<(usize, bool)>, Denied> {
        loop {
            match self.decoder.announced(&self.buffer) {
                Ok(None) => {}
                Ok(Some(bytes)) if bytes <= self.buffer.len() => return Ok(Some((bytes, true))),
                Ok(Some(bytes)) if bytes > WHOLE_FRAME_BYTES => {
                    if self.buffer.len() >= LENGTH_BYTES + GREETING_HEAD_BYTES {
                        return Ok(Some((bytes, false)));
                    }
                }
                Ok(Some(_)) => {}
                Err(error) if self.greeter.is_locked() => return Err(Denied::Broke(error.to_string())),
                Err(_) => return Ok(None),
            }
            let may_be_silent = self.buffer.is_empty() && !self.greeter.is_locked();
            self.buffer.reserve(READ_BYTES);
            let read = self.stream.read_buf(&mut self.buffer);
            let read = if may_be_silent {
                let Ok(read) = tokio::time::timeout(SILENCE_MAX, read).await else { return Ok(None) };
                read
            } else {
                read.await
            };
            if read? == 0 {
                return Err(Denied::Left(None));
            }
        }
    }

    /// Takes a frame off the buffer; what has not come of it yet is thrown away as it comes.
    async fn skip(&mut self, frame_bytes: usize) -> io::Result<()> {
        let mut left = frame_bytes;
        loop {
            let here = left.min(self.buffer.len());
            self.buffer.advance(here);
            left -= here;
            if left == 0 {
                return Ok(());
            }
            self.buffer.clear();
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame).await?;
        self.stream.flush().await
    }

    async fn secure(mut self) -> Result<Self, Denied> {
        let Some(config) = &self.material.tls else {
            return Err(Denied::Handshake(io::Error::other("it is not configured")));
        };
        let acceptor = TlsAcceptor::from(Arc::clone(config));
        let stream = acceptor.accept(self.stream).await.map_err(Denied::Handshake)?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        self.secured = Some(certificate.map(|certificate| fingerprint(certificate)));
        self.stream = Box::new(stream);
        self.greeter.secured();
        Ok(self)
    }

    fn admit(self, holder: Option<&str>) -> Admitted {
        let mut shown = Vec::new();
        if let Some(holder) = holder {
            shown.push(format!("token of {holder}"));
        }
        let ended = if self.secured.is_some() { Ended::Secured } else { Ended::Clear };
        if let Some(Some(certificate)) = self.secured {
            shown.push(format!("certificate {certificate}"));
        }
        Admitted { stream: Prefixed::boxed(self.buffer, self.stream), shown: shown.join(", "), ended }
    }
}

/// The first eight bytes of a certificate's SHA-256, as `openssl x509 -fingerprint -sha256` begins.
fn fingerprint(certificate: &[u8]) -> String {
    Sha256::digest(certificate).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
