//! Adds that must wait for the index before they can be queued: their ledger is not in memory, or must be revived.
//!
//! A connection has one lane. While anything is in it all adds of the connection go through it, because they are answered in their order;
//! its reads pass by. What waits holds its part of the add budget, and is refused at its deadline as too many requests: it was not
//! queued, so it surely does not happen.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use common::budget::BytePermit;
use futures::FutureExt as _;
use ledger::{LedgerId, MasterKey};
use proto::Status;
use tokio::time::Instant;

use super::Server;
use crate::journal::Completion;
use crate::store::{Add, LedgerSlot};
use crate::wakeups::Wakeups;

/// What the journal is to do, and how it is answered.
pub(super) enum Order {
    Add {
        ledger: LedgerId,
        add: Add,
        done: Completion,
        in_order: bool,
    },
    WriteLac {
        ledger: LedgerId,
        key: MasterKey,
        body: Bytes,
        permit: Option<Arc<BytePermit>>,
        received: Instant,
        done: Completion,
    },
    Refuse {
        status: Status,
        done: Completion,
        in_order: bool,
    },
}

/// See the module.
pub(super) struct Lane {
    server: Arc<Server>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Order>,
    /// Whether a task serves them; the one it serves is not in the queue any more.
    driven: bool,
}

impl Lane {
    pub(super) fn new(server: Arc<Server>) -> Arc<Self> {
        Arc::new(Self { server, queue: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what can be done at once, and queues the rest. `find` gives ledgers that are in memory.
    pub(super) fn put(self: &Arc<Self>, order: Order, find: impl FnOnce(LedgerId) -> Option<Arc<LedgerSlot>>) {
        let order = if self.lock().driven {
            order
        } else {
            let slot = match &order {
                Order::Add { ledger, .. } | Order::WriteLac { ledger, .. } => find(*ledger),
                Order::Refuse { .. } => None,
            };
            match self.try_now(order, slot.as_ref()) {
                Some(order) => order,
                None => return,
            }
        };
        let mut queue = self.lock();
        queue.waiting.push_back(order);
        if !std::mem::replace(&mut queue.driven, true) {
            drop(queue);
            let lane = self.clone();
            self.server.tasks.spawn("adds", async move {
                while let Some(order) = lane.next() {
                    lane.serve(order).await;
                }
            });
        }
    }

    fn next(&self) -> Option<Order> {
        let mut queue = self.lock();
        let next = queue.waiting.pop_front();
        queue.driven = next.is_some();
        next
    }

    /// Gives an order back that must wait for the index.
    fn try_now(&self, order: Order, slot: Option<&Arc<LedgerSlot>>) -> Option<Order> {
        let store = &self.server.store;
        match (order, slot) {
            (Order::Refuse { status, done, in_order }, _) => store.refuse(status, done, in_order),
            (Order::Add { ledger, add, done, in_order }, Some(slot)) => {
                let (add, done) = store.add(slot, add, done, in_order).err()?;
                return Some(Order::Add { ledger, add, done, in_order });
            }
            (Order::WriteLac { key, body, permit, done, .. }, Some(slot)) => {
                store.write_lac(slot, &key, body, permit, done);
            }
            (order, None) => return Some(order),
        }
        None
    }

    async fn serve(&self, order: Order) {
        let (ledger, received) = match &order {
            Order::Add { ledger, add, .. } => (*ledger, add.received),
            Order::WriteLac { ledger, received, .. } => (*ledger, *received),
            Order::Refuse { .. } => {
                self.try_now(order, None);
                return;
            }
        };
        let until = self.server.until(received);
        let slot = match self.server.by(until, self.server.load(ledger)).await {
            Ok(slot) => slot,
            Err(status) => return self.refuse(order, status),
        };
        let Some(order) = self.try_now(order, Some(&slot)) else { return };
        let revived = self.server.by(until, self.revive(&slot)).await;
        let left = match revived {
            Ok(()) => self.try_now(order, Some(&slot)).map(|order| (order, Status::Io)),
            Err(status) => Some((order, status)),
        };
        if let Some((order, status)) = left {
            self.refuse(order, status);
        }
    }

    /// Once for all who ask, and to its end even when nobody waits for it. Cancel-safe.
    async fn revive(&self, slot: &Arc<LedgerSlot>) -> Result<(), Status> {
        let revive = || {
            let (store, slot) = (self.server.store.clone(), slot.clone());
            async move { Ok(store.revive(&slot).await) }.boxed()
        };
        self.server.revivals.get(slot.id(), || None, revive).await.unwrap_or(Err(Status::Io))
    }

    fn refuse(&self, order: Order, status: Status) {
        match order {
            Order::Add { done, in_order, .. } | Order::Refuse { done, in_order, .. } => {
                self.server.store.refuse(status, done, in_order);
            }
            Order::WriteLac { done, .. } => {
                let mut wakeups = Wakeups::default();
                done(Err(status), &mut wakeups);
                wakeups.flush();
            }
        }
    }
}
