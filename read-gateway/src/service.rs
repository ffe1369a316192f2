//! `thermocline.v1.Ledgers`.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, CreateOptions, OpenMode, Opened};
use cold::ColdStore;
use common::budget::ByteBudget;
use common::metrics::Set;
use common::net::Listener;
use common::shutdown::TaskTree;
use futures::stream::{BoxStream, StreamExt as _};
use ledger::{LedgerId, Password, Quorums};
use metadata::{LedgerRecord, Ledgers};
use proto::v1::ledgers_server::LedgersServer;
use proto::{GRPC_MESSAGE_BYTES_MAX, v1};
use tonic::{Request, Response, Status, Streaming};

use crate::answers::{Answers, answers};
use crate::blocks::MokaBlocks;
use crate::client_tier::ClientTier;
use crate::cold_tier::ColdTier;
use crate::config::GatewayConfig;
use crate::describe::{RESERVED_PREFIX, describe, digest_type};
use crate::error::{Error, ErrorKind, Result};
use crate::front::{self, Front};
use crate::metrics::{Metrics, Stream as StreamKind};
use crate::objects::ObjectCache;
use crate::ownership::Shards;
use crate::reading::{Tiers, check_password, ledger_id};
use crate::session::Session;
use crate::writers::{self, Writers};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;

/// What a gateway is made of.
pub struct GatewayParts {
    /// Writes ledgers and reads the hot tier.
    pub client: Client,
    /// Ledger metadata.
    pub ledgers: Ledgers,
    /// The cold tier.
    pub cold: ColdStore,
    /// The cluster's identity; part of every object's key.
    pub instance_id: String,
    /// Parent of the gateway's budgets.
    pub budget: ByteBudget,
    /// The gateway's tasks run in a subtree of this.
    pub tasks: TaskTree,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct LedgersService {
    gateway: Arc<Gateway>,
}

struct Gateway {
    client: Client,
    tiers: Arc<Tiers>,
    writers: Writers,
    instance_id: String,
    config: GatewayConfig,
    tasks: TaskTree,
    budgets: [ByteBudget; 4],
    blocks: MokaBlocks,
    front: Arc<Front>,
}

impl LedgersService {
    /// A gateway. The configuration has been validated.
    pub fn new(parts: GatewayParts, config: GatewayConfig) -> Self {
        let tasks = parts.tasks.child("gateway");
        let memory_timeout = config.memory_timeout.duration();
        let blocks = parts.budget.child("gateway blocks", config.cache_bytes.bytes());
        let footers = parts.budget.child("gateway footers", config.footer_cache_bytes.bytes());
        let send = parts.budget.child("gateway messages", config.send_bytes.bytes());
        let ends = parts.budget.child("gateway ends", config.ends_bytes.bytes());
        let metrics = Metrics::new();
        let objects = ObjectCache::with_metrics(
            parts.cold,
            parts.instance_id.clone(),
            footers.clone(),
            memory_timeout,
            tasks.clone(),
            metrics.clone(),
        );
        let table = MokaBlocks::with_metrics(blocks.clone(), memory_timeout, tasks.clone(), metrics.clone());
        let writers = Writers::new(config.writers_max);
        let tiers = Tiers {
            ledgers: parts.ledgers,
            hot: Arc::new(ClientTier::new(parts.client.clone(), writers.clone())),
            cold: ColdTier::new(objects, Arc::new(table.clone()), tasks.clone()),
            send_budget: send.clone(),
            read_timeout: config.read_timeout.duration(),
            memory_timeout,
            metrics,
        };
        let tiers = Arc::new(tiers);
        let front = Arc::new(Front::new(Arc::clone(&tiers), &ends, &config, tasks.clone()));
        let gateway = Gateway {
            client: parts.client,
            tiers,
            writers,
            instance_id: parts.instance_id,
            config,
            tasks,
            budgets: [blocks, footers, send, ends],
            blocks: table,
            front,
        };
        Self { gateway: Arc::new(gateway) }
    }

    /// The tonic service, with the message sizes the protocol needs.
    pub fn into_server(self) -> LedgersServer<Self> {
        LedgersServer::new(self)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
    }

    /// The gateway's budgets, for reports.
    pub fn budgets(&self) -> &[ByteBudget] {
        &self.gateway.budgets
    }

    /// The gateway's metrics. They keep nothing of it alive.
    pub fn metrics(&self) -> Set {
        let gateway = Arc::downgrade(&self.gateway);
        let live_writers = move || Some(gateway.upgrade()?.writers.ledgers().len() as f64);
        let mut set = self.gateway.tiers.metrics.shown(self.gateway.blocks.cached_bytes(), live_writers);
        set.add(self.gateway.front.metrics());
        set
    }

    /// Serves cold ids over BookKeeper's protocol, in the gateway's tasks, until they are asked to stop. Without it nobody can read
    /// released ledgers but through gRPC, and nothing can be released.
    pub fn serve_bookkeeper(&self, listener: Box<dyn Listener>) {
        self.gateway.tasks.spawn_critical("bookkeeper front", front::accept(Arc::clone(&self.gateway.front), listener));
    }

    /// The shards of cold ids that this gateway owns: for its [`crate::Registration`] to tell.
    pub fn shards(&self) -> Shards {
        self.gateway.front.shards().clone()
    }

    /// How many ledgers have a live writer here.
    pub fn live_writers(&self) -> usize {
        self.gateway.writers.ledgers().len()
    }

    /// Closes the ledgers that have a live writer here, as part of an orderly stop: the bookies must still serve. Gives up after
    /// `deadline`; ledgers that are left open are recovered when somebody closes them.
    ///
    /// # Errors
    /// Names the first ledger that could not be closed; the others have been tried all the same.
    pub async fn close_writers(&self, deadline: Duration) -> std::result::Result<(), Error> {
        let mut first = None;
        let close_all = async {
            for ledger in self.gateway.writers.ledgers() {
                let Some(live) = self.gateway.writers.get(ledger) else { continue };
                match live.writer.close().await {
                    Ok(_) => self.gateway.writers.remove(ledger),
                    Err(error) => {
                        let message = format!("close ledger {ledger}");
                        first.get_or_insert(Error::because(ErrorKind::Unavailable, message, error));
                    }
                }
            }
        };
        let in_time = tokio::time::timeout(deadline, close_all).await;
        match (first, in_time) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(()),
            (None, Err(_)) => {
                Err(Error::new(ErrorKind::Timeout, format!("close ledgers: not all within {deadline:?}")))
            }
        }
    }
}

impl Gateway {
    fn check_running(&self) -> Result<()> {
        if self.tasks.is_stopping() { Err(Error::stopping()) } else { Ok(()) }
    }

    async fn create(&self, request: v1::CreateLedgerRequest) -> Result<LedgerId> {
        self.check_running()?;
        self.writers.check_room()?;
        let quorums = self.quorums(&request)?;
        let digest_type = digest_type(request.digest_type).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("there is no digest type number {}", request.digest_type))
        })?;
        if let Some(key) = request.custom.keys().find(|key| key.starts_with(RESERVED_PREFIX)) {
            let message = format!("custom key {key:?}: keys that start with {RESERVED_PREFIX:?} are reserved");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let password = Password::new(request.password);
        let options = CreateOptions {
            quorums,
            digest: digest_type,
            password: password.clone(),
            custom: request.custom.into_iter().collect(),
        };
        let writer = self.client.create(options).await?;
        let ledger = writer.id();
        self.writers.keep(writer, password);
        Ok(ledger)
    }

    /// Sizes that were left out are the server's, as far as they fit the others.
    fn quorums(&self, request: &v1::CreateLedgerRequest) -> Result<Quorums> {
        let or = |asked: u32, default: u32| if asked == 0 { default } else { asked };
        let ensemble = or(request.ensemble_size, self.config.ensemble_size);
        let write = or(request.write_quorum, self.config.write_quorum.min(ensemble));
        let ack = or(request.ack_quorum, self.config.ack_quorum.min(write));
        Quorums::new(ensemble, write, ack)
            .map_err(|error| Error::because(ErrorKind::Invalid, "the sizes do not fit each other", error))
    }

    async fn close(&self, request: v1::CloseLedgerRequest) -> Result<v1::Ledger> {
        self.check_running()?;
        let ledger = ledger_id(request.ledger_id)?;
        if let Some(live) = self.writers.open(ledger, &request.password)?
            && let Err(error) = live.writer.close().await
        {
            // The writer has failed, or somebody fenced it. Recovery closes the ledger whatever happened to it.
            tracing::info!(ledger_id = %ledger, error = %error, "the writer could not close its ledger, recovering it");
        }
        let mut record = self.record_or_forget(ledger).await?;
        check_password(ledger, &record, &request.password)?;
        if !record.metadata.is_closed() {
            let password = record.metadata.password().cloned();
            match self.client.open(ledger, OpenMode::Recover, password.as_ref()).await? {
                Opened::Hot(_) | Opened::Cold(_) => {}
            }
            record = self.record_or_forget(ledger).await?;
        }
        self.writers.remove(ledger);
        Ok(self.describe(ledger, &record))
    }

    /// A ledger's record, by quorum. The writer of a ledger that is gone is of no more use.
    async fn record_or_forget(&self, ledger: LedgerId) -> Result<LedgerRecord> {
        let record = self.tiers.proven_record(ledger).await;
        if record.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.writers.remove(ledger);
        }
        record
    }

    async fn delete(&self, ledger: LedgerId) -> Result<()> {
        self.check_running()?;
        self.record_or_forget(ledger).await?;
        if let Some(live) = self.writers.get(ledger)
            && let Err(error) = live.writer.close().await
        {
            tracing::info!(ledger_id = %ledger, error = %error, "a ledger is deleted whose writer could not close it");
        }
        self.client.delete(ledger).await?;
        self.writers.remove(ledger);
        Ok(())
    }

    async fn list(&self, request: v1::ListLedgersRequest) -> Result<v1::ListLedgersResponse> {
        let limit = if request.page_size == 0 { PAGE_DEFAULT } else { request.page_size.min(PAGE_MAX) };
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse::<LedgerId>().map_err(|_| {
                Error::new(
                    ErrorKind::Invalid,
                    format!("{token:?} is no page token: use next_page_token of the page before"),
                )
            })?),
        };
        let page = self.tiers.ledgers.list(after, limit as usize).await?;
        let next_page_token = page.last().map(|(ledger, _)| ledger.to_string()).unwrap_or_default();
        let ledgers = page.iter().map(|(ledger, record)| self.describe(*ledger, record)).collect();
        Ok(v1::ListLedgersResponse { ledgers, next_page_token })
    }

    async fn last_confirmed(&self, ledger: LedgerId) -> Result<v1::LastConfirmedResponse> {
        let record = self.tiers.record(ledger).await?;
        let closed = record.metadata.is_closed();
        let last = if closed {
            record.metadata.last_entry()
        } else {
            self.tiers.hot.last_confirmed(ledger, &record.metadata).await?
        };
        Ok(v1::LastConfirmedResponse { entry_id: last.map(ledger::EntryId::get), closed })
    }

    fn describe(&self, ledger: LedgerId, record: &LedgerRecord) -> v1::Ledger {
        describe(&self.instance_id, ledger, record)
    }

    async fn append(
        &self,
        mut requests: Streaming<v1::AppendRequest>,
        answers: &Answers<v1::AppendResponse>,
    ) -> Result<()> {
        let open = writers::first_message(&mut requests, self.config.session_idle.duration()).await?;
        let ledger = ledger_id(open.ledger_id)?;
        let Some(live) = self.writers.open(ledger, &open.password)? else {
            let record = self.tiers.record(ledger).await?;
            let message = if record.metadata.is_closed() {
                format!("append to ledger {ledger}: it is closed for ever; create another one")
            } else {
                format!(
                    "append to ledger {ledger}: its writer is not in this gateway. Append where the ledger was created, or close it here \
                     (which takes it from its writer) and create another one"
                )
            };
            return Err(Error::new(ErrorKind::Precondition, message));
        };
        writers::append(&live, requests, answers).await
    }
}

#[tonic::async_trait]
impl v1::ledgers_server::Ledgers for LedgersService {
    async fn create_ledger(
        &self,
        request: Request<v1::CreateLedgerRequest>,
    ) -> std::result::Result<Response<v1::CreateLedgerResponse>, Status> {
        let gateway = Arc::clone(&self.gateway);
        let request = request.into_inner();
        let ledger = self.run("create ledger", async move { gateway.create(request).await }).await?;
        Ok(Response::new(v1::CreateLedgerResponse { ledger_id: ledger.get() }))
    }

    type AppendStream = BoxStream<'static, std::result::Result<v1::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<v1::AppendRequest>>,
    ) -> std::result::Result<Response<Self::AppendStream>, Status> {
        self.gateway.check_running()?;
        let gateway = Arc::clone(&self.gateway);
        let requests = request.into_inner();
        let (answers, stream) = answers();
        self.gateway.tasks.spawn("append", async move {
            let _open = gateway.tiers.metrics.stream(StreamKind::Append);
            let result = tokio::select! {
                biased;
                () = answers.gone() => return,
                () = gateway.tasks.stopping() => Err(Error::stopping()),
                result = gateway.append(requests, &answers) => result,
            };
            answers.end(result);
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn close_ledger(
        &self,
        request: Request<v1::CloseLedgerRequest>,
    ) -> std::result::Result<Response<v1::Ledger>, Status> {
        let gateway = Arc::clone(&self.gateway);
        let request = request.into_inner();
        Ok(Response::new(self.run("close ledger", async move { gateway.close(request).await }).await?))
    }

    async fn delete_ledger(
        &self,
        request: Request<v1::DeleteLedgerRequest>,
    ) -> std::result::Result<Response<v1::DeleteLedgerResponse>, Status> {
        let gateway = Arc::clone(&self.gateway);
        let ledger = ledger_id(request.into_inner().ledger_id)?;
        self.run("delete ledger", async move { gateway.delete(ledger).await }).await?;
        Ok(Response::new(v1::DeleteLedgerResponse {}))
    }

    async fn get_ledger(
        &self,
        request: Request<v1::GetLedgerRequest>,
    ) -> std::result::Result<Response<v1::Ledger>, Status> {
        let ledger = ledger_id(request.into_inner().ledger_id)?;
        let record = self.gateway.tiers.record(ledger).await?;
        Ok(Response::new(self.gateway.describe(ledger, &record)))
    }

    async fn list_ledgers(
        &self,
        request: Request<v1::ListLedgersRequest>,
    ) -> std::result::Result<Response<v1::ListLedgersResponse>, Status> {
        Ok(Response::new(self.gateway.list(request.into_inner()).await?))
    }

    type ReadEntriesStream = BoxStream<'static, std::result::Result<v1::ReadEntriesResponse, Status>>;

    async fn read_entries(
        &self,
        request: Request<Streaming<v1::ReadEntriesRequest>>,
    ) -> std::result::Result<Response<Self::ReadEntriesStream>, Status> {
        self.gateway.check_running()?;
        let session = Session {
            tiers: Arc::clone(&self.gateway.tiers),
            tasks: self.gateway.tasks.clone(),
            initial_credit_bytes: self.gateway.config.initial_credit_bytes.bytes(),
            idle: self.gateway.config.session_idle.duration(),
        };
        let (answers, stream) = answers();
        self.gateway.tasks.spawn("read entries", session.run(request.into_inner(), answers));
        Ok(Response::new(stream.boxed()))
    }

    async fn last_confirmed(
        &self,
        request: Request<v1::LastConfirmedRequest>,
    ) -> std::result::Result<Response<v1::LastConfirmedResponse>, Status> {
        let ledger = ledger_id(request.into_inner().ledger_id)?;
        Ok(Response::new(self.gateway.last_confirmed(ledger).await?))
    }
}

impl LedgersService {
    /// Runs a call that changes something in a task of its own, so that it is finished even when its caller goes away half way.
    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let (answer, result) = tokio::sync::oneshot::channel();
        self.gateway.tasks.spawn(name, async move {
            let _ = answer.send(call.await);
        });
        match result.await {
            Ok(result) => result.map_err(Status::from),
            // The task was dropped unrun, or panicked, which has been logged.
            Err(_) => Err(Error::stopping().to_status()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
