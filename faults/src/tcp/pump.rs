//! Carries the two directions of one connection.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Counters, Fate, Flow, Orders};
use crate::pace::Pace;

const READ_BYTES: usize = 16 << 10;
/// Reads under way between reader and writer of a direction: 1 MiB.
const QUEUE: usize = 64;

/// Why a direction ended.
enum End {
    /// The sender has no more, the receiver knows.
    Done,
    /// The connection must be reset.
    Broken,
}

type Side = fn(&Orders) -> Flow;

/// Carries both directions until both have ended, one breaks, or `reset` comes. Returns whether the connection was broken.
pub(super) async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    orders: &watch::Receiver<Orders>,
    counters: &Counters,
    reset: impl Future<Output = ()>,
) -> bool {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up =
            direction(from_client, to_server, orders.clone(), |now| now.behaviour.up, &counters.bytes_up, counters);
        let down =
            direction(from_server, to_client, orders.clone(), |now| now.behaviour.down, &counters.bytes_down, counters);
        let both = async {
            tokio::pin!(up, down);
            match select(up, down).await {
                Either::Left((End::Done, other)) => matches!(other.await, End::Broken),
                Either::Right((End::Done, other)) => matches!(other.await, End::Broken),
                _ => true,
            }
        };
        tokio::select! {
            broken = both => broken,
            () = reset => true,
        }
    };
    if broken {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
    broken
}

/// One direction: a reader that obeys the orders, a bounded queue, a writer that keeps time.
async fn direction(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    orders: watch::Receiver<Orders>,
    side: Side,
    passed: &AtomicU64,
    counters: &Counters,
) -> End {
    let (queue, queued) = mpsc::channel(QUEUE);
    let reader = read(from, queue, orders.clone(), side, counters);
    let writer = write(to, queued, orders, side, passed);
    let (read_end, write_end) = tokio::join!(reader, writer);
    match (read_end, write_end) {
        (Ok(()), Ok(End::Done)) => End::Done,
        _ => End::Broken,
    }
}

async fn read(
    mut from: ReadHalf<'_>,
    queue: mpsc::Sender<(Instant, Bytes)>,
    mut orders: watch::Receiver<Orders>,
    side: Side,
    counters: &Counters,
) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        if orders.wait_for(|now| side(now).fate != Fate::Stall).await.is_err() {
            return Ok(());
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            // Stalled meanwhile: what arrives from now on stays with the sender.
            _ = orders.wait_for(|now| side(now).fate == Fate::Stall) => continue,
            () = queue.closed() => return Ok(()),
        };
        if read == 0 {
            return Ok(());
        }
        let flow = side(&orders.borrow_and_update());
        if flow.fate == Fate::Swallow {
            counters.bytes_swallowed.fetch_add(read as u64, Ordering::Relaxed);
            continue;
        }
        let due = Instant::now() + flow.delay;
        if queue.send((due, Bytes::copy_from_slice(&buffer[..read]))).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut queued: mpsc::Receiver<(Instant, Bytes)>,
    orders: watch::Receiver<Orders>,
    side: Side,
    passed: &AtomicU64,
) -> io::Result<End> {
    let mut sent = 0u64;
    let mut pace = Pace::new(None);
    let mut rate = None;
    while let Some((due, mut bytes)) = queued.recv().await {
        tokio::time::sleep_until(due).await;
        let flow = side(&orders.borrow());
        if flow.bytes_per_second != rate {
            rate = flow.bytes_per_second;
            pace = Pace::new(rate);
        }
        let cut = match flow.fate {
            Fate::CutAfter(most) if sent + bytes.len() as u64 >= most => {
                bytes.truncate(usize::try_from(most.saturating_sub(sent)).unwrap_or(usize::MAX));
                true
            }
            _ => false,
        };
        if let Some(at) = pace.admit(bytes.len()) {
            tokio::time::sleep_until(at).await;
        }
        to.write_all(&bytes).await?;
        sent += bytes.len() as u64;
        passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if cut {
            return Ok(End::Broken);
        }
    }
    to.shutdown().await?;
    Ok(End::Done)
}
