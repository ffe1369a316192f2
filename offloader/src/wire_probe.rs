use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use common::net::{BoxStream, Connector};
use ledger::{ColdId, EntryId, LedgerId};
use metadata::{Bookies, ColdShards, Gateways, MetadataStore, OwnedShard};
use proto::client::{PayloadV3, decode_response_v3, encode_read_v3};
use proto::{FRAME_BYTES_MAX_DEFAULT, FrameDecoder, ReadTarget, Status};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::{ReleaseProbe, Served};

const DOING: &str = "release";
/// Pause before a cold id that led nowhere is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take: the time that clients of BookKeeper's protocol give a bookie by default.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads through cold ids as clients of BookKeeper's protocol do: finds an id's registration, connects there, asks.
///
/// Registrations outlive their gateways, and requests do not say whom they are for: at an old address a bookie that still holds
/// the ledger would answer with the same bytes. So only a registration that leads to the owner of the id's shard is followed.
pub struct WireProbe {
    bookies: Bookies,
    shards: ColdShards,
    gateways: Gateways,
    connector: Arc<dyn Connector>,
    patience: Duration,
}

/// Why a try gave nothing.
enum Miss {
    /// It may come: nobody has registered the id, or nobody answers there.
    Wait(String),
    /// It will not: what came is wrong.
    Fail(Error),
}

impl WireProbe {
    /// A probe over the registrations in `store`. An id that is registered nowhere, or at a gateway that does not answer, is tried
    /// again for `patience`: cold ids are registered once the first release asks for them, and move when a gateway goes.
    #[must_use]
    pub fn new(store: Arc<dyn MetadataStore>, connector: Arc<dyn Connector>, patience: Duration) -> Self {
        Self {
            bookies: Bookies::new(Arc::clone(&store)),
            shards: ColdShards::new(Arc::clone(&store)),
            gateways: Gateways::new(store),
            connector,
            patience,
        }
    }

    async fn attempt(&self, id: &ColdId, ledger: LedgerId, entries: &[EntryId]) -> std::result::Result<Served, Miss> {
        let failed = |error| Miss::Fail(Error::metadata("look up a cold id to release", ledger, error));
        let Some((gateway, owned, owner_address)) = self.owner(id.shard()).await.map_err(failed)? else {
            let shard = id.shard();
            return Err(Miss::Wait(format!(
                "cold id {id} is not served: no gateway that answers BookKeeper's protocol owns shard {shard} yet (`thermocline gateway`)"
            )));
        };
        let address = match self.bookies.get(&id.to_bookie_id()).await.map_err(failed)? {
            Some((info, false)) if info.address == owner_address => info.address,
            Some((info, _)) => {
                let elsewhere = info.address;
                return Err(Miss::Wait(format!(
                    "cold id {id} leads to {elsewhere}, not to {owner_address} of gateway {gateway}, which owns its shard"
                )));
            }
            None => {
                return Err(Miss::Wait(format!(
                    "cold id {id} is not registered yet by gateway {gateway}, which owns its shard"
                )));
            }
        };
        let away = |why: &dyn std::fmt::Display| Miss::Wait(format!("cold id {id} leads to {address}: {why}"));
        let asked = tokio::time::timeout(CLIENT_TIMEOUT, self.ask(&address, ledger, entries)).await;
        match asked {
            Ok(Ok(answers)) => {
                let bodies = answers.into_iter().map(|answer| body(id, &address, ledger, answer));
                Ok(Served { bodies: bodies.collect::<std::result::Result<_, _>>()?, owned })
            }
            Ok(Err(error)) => Err(away(&error)),
            Err(_) => Err(away(&format_args!("no answer within {CLIENT_TIMEOUT:?}"))),
        }
    }

    /// The live gateway that owns a shard and answers BookKeeper's protocol: its name, the shard as it holds it, and where it answers.
    async fn owner(&self, shard: u8) -> std::result::Result<Option<(String, OwnedShard, String)>, metadata::Error> {
        let Some(owner) = self.shards.owner_quorum(shard).await? else { return Ok(None) };
        let gateway = self.gateways.get_quorum(&owner.gateway).await?;
        let owned = OwnedShard { shard, version: owner.version };
        let leased = owner.lease.is_some();
        let address = gateway.and_then(|gateway| gateway.bookkeeper).filter(|_| leased);
        Ok(address.map(|address| (owner.gateway, owned, address)))
    }

    /// Asks for all entries at once over a connection of its own; the answers are in the order of the entries.
    async fn ask(&self, address: &str, ledger: LedgerId, entries: &[EntryId]) -> std::io::Result<Vec<Answer>> {
        let mut stream = self.connector.connect(address).await?;
        let mut frames = BytesMut::new();
        for (txn, entry) in (0_u64..).zip(entries) {
            encode_read_v3(txn, ledger, ReadTarget::Entry(*entry), None, false, &mut frames);
        }
        stream.write_all(&frames).await?;
        stream.flush().await?;
        let mut answers: Vec<Option<Answer>> = vec![None; entries.len()];
        let (mut decoder, mut input) = (FrameDecoder::new(FRAME_BYTES_MAX_DEFAULT), BytesMut::new());
        while answers.iter().any(Option::is_none) {
            let payload = next_frame(&mut stream, &mut decoder, &mut input).await?;
            let response = decode_response_v3(payload).map_err(std::io::Error::other)?;
            let entry = usize::try_from(response.txn).ok().and_then(|place| Some((place, entries.get(place)?)));
            let Some((place, entry)) = entry else {
                return Err(std::io::Error::other(format!(
                    "an answer to request {}, which was not sent",
                    response.txn
                )));
            };
            let body = match response.payload {
                PayloadV3::Entry { body, .. } => Some(body),
                _ => None,
            };
            answers[place] = Some(Answer { entry: *entry, status: response.status, body });
        }
        Ok(answers.into_iter().flatten().collect())
    }
}

#[derive(Debug, Clone)]
struct Answer {
    entry: EntryId,
    status: Status,
    body: Option<Bytes>,
}

async fn next_frame(
    stream: &mut BoxStream,
    decoder: &mut FrameDecoder,
    input: &mut BytesMut,
) -> std::io::Result<Bytes> {
    loop {
        if let Some(payload) = decoder.decode(input).map_err(std::io::Error::other)? {
            return Ok(payload);
        }
        if stream.read_buf(input).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn body(id: &ColdId, address: &str, ledger: LedgerId, answer: Answer) -> std::result::Result<Bytes, Miss> {
    let Answer { entry, status, body } = answer;
    let told = format!("cold id {id} at {address} answers {status:?} for entry {entry}");
    match (status, body) {
        (Status::Ok, Some(body)) => Ok(body),
        (Status::TooManyRequests, _) => Err(Miss::Wait(told)),
        // Reads show no key, so it is the guard that lets nobody in without TLS or a token.
        (Status::Unauthorized, _) => Err(Miss::Wait(format!("{told}: it wants TLS or a token; set connect.*"))),
        // A settled ledger exists and has all its entries: whoever says otherwise must not be the one who serves it.
        _ => Err(Miss::Fail(Error::of_ledger(ErrorKind::Damaged, DOING, ledger, told))),
    }
}

#[async_trait]
impl ReleaseProbe for WireProbe {
    async fn read(&self, id: &ColdId, ledger: LedgerId, entries: &[EntryId]) -> Result<Served> {
        let until = Instant::now() + self.patience;
        loop {
            match self.attempt(id, ledger, entries).await {
                Ok(served) => return Ok(served),
                Err(Miss::Fail(error)) => return Err(error),
                Err(Miss::Wait(why)) if Instant::now() + PAUSE >= until => {
                    return Err(Error::of_ledger(ErrorKind::Waiting, DOING, ledger, why));
                }
                Err(Miss::Wait(_)) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}
