//! `thermocline bench …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use url::Url;

/// `thermocline bench …`.
///
/// Each bench prints a table: the figure, the machine's limit, the share of the limit that was reached, and whether the target is met. The limit
/// is measured in the same run by doing the same work raw, so that a slow disk shows as a low limit and not as a slow product.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// How many entries a bookie makes durable in a second, and how soon (P2, P1).
    ///
    /// Starts a bookie in --dir and adds entries over loopback TCP: first at full speed (1, 4 and 64 KiB), then steadily at half of the full speed, where
    /// each entry has its time and latency counts from then, so that a stall is charged to every entry that was due in it.
    ///
    /// Limit: the groups that the journal wrote in that run, written again raw to the same directory: same sizes, one sync each, one in flight, direct
    /// writes into reserved files. --quick leaves out 4 KiB.
    Append(BenchArgs),
    /// How fast one connection reads entries that are in the journal and no longer in memory (P4).
    ///
    /// Limit: the slower of reading the same bytes from the same files in large reads, and sending the replies' bytes over one loopback connection.
    Catchup(BenchArgs),
    /// The figures of a bookie in one run: append and catchup, and what only shows with more load (P1, P2, P4, P7, P11).
    ///
    /// Beside those two: appends to 10 and 1,000 ledgers at once (P2); the latency of appends at half speed while two readers that fell behind read
    /// at full speed from the disk (P7); and how long a bookie takes to serve again after it was killed, with 10 GiB of journal and a million ledgers (P11).
    ///
    /// Limits: those of append and catchup; for P7 the journal's own groups written raw with nobody reading, for P11 reading the part of the journal that
    /// has no index yet. --quick takes 1 KiB entries only, 1,000 ledgers, single reads and batches from the page cache, and a journal of half a GiB.
    /// Needs up to 16 GiB in --dir; --quick needs 5.
    Bookie(BenchArgs),
    /// How fast one reader gets a settled ledger from the object store through a gateway (P5).
    ///
    /// The store is one in this process that answers as a cloud store does (first byte after about 30 ms, 58 MiB/s a connection, stragglers), or the one
    /// that --store names. The gateway begins with an empty cache.
    ///
    /// Limit: the same GETs made raw against the same store, their bytes dropped, with as many in flight as serves them best.
    ColdRead(BenchStoreArgs),
    /// What it costs to turn a ledger into a verified Parquet object (P8).
    ///
    /// Writes ledgers of 1 KiB log lines to a bookie and settles them: read, check every digest, encode, upload, read back, compare, commit. The figure
    /// is payload for each second of a core that the offloader took, its reading from the bookie included; the read-back stands apart.
    ///
    /// Limit: the same payload compressed page by page, written and synced by one plain thread. Objects go to --dir unless --store names a store.
    /// --quick leaves out incompressible payload.
    Offload(BenchStoreArgs),
    /// Print the document of the figures in JSON files that other benches wrote (docs/performance.md).
    ///
    /// Example: thermocline bench report append.json catchup.json --json all.json > performance.md
    Report {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Also write the rows of all files to one.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// What every bench takes.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// A directory on the disk to measure. A folder of its own is made in it and removed at the end; needs up to 5 GiB.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Measure a subset, within 50 seconds.
    #[arg(long)]
    pub quick: bool,
    /// Also write the rows as JSON, an array of objects: id, what, value, unit, limit, ratio, target, met, machine, commit and more.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The least that gives every row: shows that the bench works, not what the machine can do.
    #[arg(long, hide = true, conflicts_with = "quick")]
    pub smoke: bool,
}

/// What benches of the cold tier take.
#[derive(Debug, Clone, Args)]
pub struct BenchStoreArgs {
    /// What every bench takes.
    #[command(flatten)]
    pub common: BenchArgs,
    /// The object store to measure: s3://bucket/prefix, gs://, az:// or file:///path. Objects that the bench writes stay there.
    ///
    /// Without it: a store in this process for cold-read, a folder in --dir for offload.
    #[arg(long, value_name = "URL")]
    pub store: Option<Url>,
}
