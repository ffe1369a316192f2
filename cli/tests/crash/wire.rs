//! A bookie over BookKeeper's wire, version 2.

use bytes::{Bytes, BytesMut};
use ledger::{DigestType, Digester, EntryHeader, EntryId, LedgerId, MasterKey, Password};
use proto::client::{AddFlags, ResponseV2, decode_response_v2, encode_add_v2, encode_read_v2};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, ReadTarget, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::DEADLINE;

pub struct Wire {
    stream: TcpStream,
    received: BytesMut,
    out: BytesMut,
}

/// The digest of all ledgers here.
pub fn digester() -> Digester {
    Digester::new(DigestType::Crc32c, &Password::empty())
}

pub fn ledger_id(ledger: u64) -> LedgerId {
    LedgerId::new(ledger).unwrap()
}

pub fn entry_id(entry: u64) -> EntryId {
    EntryId::new(entry).unwrap()
}

impl Wire {
    pub async fn connect(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: BytesMut::new(), out: BytesMut::new() })
    }

    async fn send(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&self.out.split()).await
    }

    /// The next reply; an error when the bookie is gone.
    async fn reply(&mut self) -> std::io::Result<ResponseV2> {
        let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT);
        let next = async {
            loop {
                if let Some(frame) = decoder.decode(&mut self.received).map_err(std::io::Error::other)? {
                    return decode_response_v2(frame).map_err(std::io::Error::other);
                }
                if self.stream.read_buf(&mut self.received).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
        };
        tokio::time::timeout(DEADLINE, next).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }

    /// Reads entries `0..end` of a ledger: for each the payload, its digest checked, or the refusal.
    pub async fn read_all(&mut self, ledger: u64, end: u64) -> std::io::Result<Vec<Result<Bytes, Status>>> {
        let (digester, id) = (digester(), ledger_id(ledger));
        let mut found = Vec::new();
        for start in (0..end).step_by(64) {
            let window = start..end.min(start + 64);
            for entry in window.clone() {
                encode_read_v2(id, ReadTarget::Entry(entry_id(entry)), None, false, &mut self.out);
            }
            self.send().await?;
            let mut answers: Vec<Option<Result<Bytes, Status>>> = vec![None; window.clone().count()];
            for _ in window.clone() {
                let reply = self.reply().await?;
                assert_eq!(reply.ledger, ledger as i64);
                let answer = if reply.status == Status::Ok {
                    let entry = digester.open(id, EntryId::new(reply.entry as u64), &reply.body);
                    Ok(entry.unwrap_or_else(|error| panic!("ledger {ledger} entry {}: {error}", reply.entry)).payload)
                } else {
                    Err(reply.status)
                };
                answers[(reply.entry as u64 - start) as usize] = Some(answer);
            }
            found.extend(answers.into_iter().map(|answer| answer.expect("each read is answered once")));
        }
        Ok(found)
    }

    /// Reads one entry: its payload, its digest checked, or the refusal.
    pub async fn read(&mut self, ledger: u64, entry: u64) -> std::io::Result<Result<Bytes, Status>> {
        encode_read_v2(ledger_id(ledger), ReadTarget::Entry(entry_id(entry)), None, false, &mut self.out);
        self.send().await?;
        let reply = self.reply().await?;
        if reply.status != Status::Ok {
            return Ok(Err(reply.status));
        }
        let entry = digester().open(ledger_id(ledger), Some(entry_id(entry)), &reply.body);
        Ok(Ok(entry.unwrap_or_else(|error| panic!("ledger {ledger}: {error}")).payload))
    }

    /// Adds one entry as its writer would.
    pub async fn add(&mut self, ledger: u64, entry: u64, payload: &[u8]) -> std::io::Result<Status> {
        let id = entry_id(entry);
        let header = EntryHeader { ledger: ledger_id(ledger), entry: id, last_confirmed: id.prev(), length: 1 };
        let body = digester().seal(&header, payload);
        encode_add_v2(&MasterKey::derive(b""), &body, AddFlags::default(), &mut self.out);
        self.send().await?;
        Ok(self.reply().await?.status)
    }

    /// Fences a ledger.
    pub async fn fence(&mut self, ledger: u64) -> std::io::Result<Status> {
        encode_read_v2(ledger_id(ledger), ReadTarget::Last, Some(&MasterKey::derive(b"")), true, &mut self.out);
        self.send().await?;
        Ok(self.reply().await?.status)
    }
}
