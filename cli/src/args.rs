//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use url::Url;

use crate::kill_at::KillAt;
use crate::profile::Profile;

mod bench;
mod cluster;
mod security;
mod store;

pub use bench::{BenchArgs, BenchCommand, BenchStoreArgs};
pub use cluster::{
    BookieCommand, BookieDirArgs, BookieDumpArgs, BookieFormatArgs, BookieReadOnlyArgs, BookieRebuildArgs,
    ClusterCommand, ClusterFormatArgs, ClusterInitArgs, ClusterShowArgs, CookieCommand, CopyArgs, MetadataArgs,
    MetadataCommand,
};
pub use security::{ClientTls, ConnectArgs, GuardArgs, ServerTls};
pub use store::{StoreCheckArgs, StoreCommand};

/// Where a node listens unless told otherwise.
pub const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:9600";

/// Tiered log storage: hot on bookies, settled into Parquet objects, read back from either.
///
/// Start with `thermocline demo`, which runs the whole road on this machine in a minute. Then start a node of your own with
/// `thermocline standalone` and, in another terminal, write to it: `thermocline ledger write new < some.log`.
#[derive(Debug, Parser)]
#[command(name = "thermocline", version, max_term_width = 120, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How much the program says on standard error: error, warn, info, debug, trace, or a filter such as `bookie=debug,warn`.
    #[arg(long, global = true, env = "THERMOCLINE_LOG", value_name = "FILTER", help_heading = "Logging")]
    pub log: Option<String>,
    /// The form of log lines.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, help_heading = "Logging")]
    pub log_format: LogFormat,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for people.
    Table,
    /// JSON for scripts.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the main job on real logs and prove it: write, settle, release, replay, compare.
    ///
    /// Starts a node of three bookies in this process, writes every line of the input as an entry of replicated ledgers, settles all
    /// but the last ledger into Parquet objects (each read back and verified), releases the bookies' copies, waits until the
    /// bookies' disk use has really fallen, then replays everything through the gateway and compares SHA-256 with the input.
    /// Exit code 0 means: everything came back equal, from both tiers.
    Demo(DemoArgs),
    /// Run a whole node in this process: bookies, metadata, offloader and gateway.
    ///
    /// Needs no configuration: data goes to ./thermocline-data, the gRPC front listens on loopback. Stop it with Ctrl-C; all that
    /// was acknowledged is there at the next start.
    Standalone(StandaloneArgs),
    /// Run a bookie: a storage node of a cluster, which keeps the recent ledgers
    ///
    /// A cluster needs at least three of them, an etcd, a gateway and an offloader; for one machine
    /// `thermocline standalone` has all of it in one process.
    /// When it serves it prints: ready role=bookie id=... address=...
    /// `thermocline bookie format` removes a bookie's data again, `rebuild-index` makes a lost index anew, `check`,
    /// `list` and `dump` look into the directory of a stopped one.
    ///
    /// Example:
    ///   thermocline bookie --id bookie-1 --dir /data/1 --listen 10.0.0.1:3181 \
    ///                      --metadata etcd://10.0.0.9:2379
    #[command(verbatim_doc_comment)]
    Bookie(BookieArgs),
    /// Run a gateway: the gRPC front that writes ledgers and reads them from either tier
    ///
    /// Any number may run side by side. A ledger's writer lives in the gateway that created it;
    /// every gateway reads all ledgers, and closes one whose writer is gone.
    /// When it serves it prints: ready role=gateway id=... endpoint=...
    ///
    /// Example:
    ///   thermocline gateway --listen 10.0.0.4:9600 --cold s3://bucket/prefix \
    ///                       --metadata etcd://10.0.0.9:2379
    #[command(verbatim_doc_comment)]
    Gateway(GatewayArgs),
    /// Run an offloader: it settles closed ledgers into objects and releases the bookies
    ///
    /// Any number may run side by side: they share the work, and one takes over what another left
    /// when it died. A release is proved through a gateway, so one must run.
    /// When it serves it prints: ready role=offloader endpoint=...
    ///
    /// Example:
    ///   thermocline offloader --listen 10.0.0.5:9610 --cold s3://bucket/prefix \
    ///                         --metadata etcd://10.0.0.9:2379
    #[command(verbatim_doc_comment)]
    Offloader(OffloaderArgs),
    /// Make, show and remove a whole cluster: administration that needs its metadata store only.
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List, show, store, remove and generate cookies: what ties a bookie's id to its data.
    #[command(subcommand)]
    Cookie(CookieCommand),
    /// Move a cluster's metadata from one store to another.
    #[command(subcommand)]
    Metadata(MetadataCommand),
    /// Create, write, close, read, show, list and remove ledgers.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Settle ledgers into the object store, and see what is settled.
    #[command(subcommand)]
    Offload(OffloadCommand),
    /// Measure this machine, its disk and the stores, and say what a bookie can sustain here and what will hurt first.
    ///
    /// Writes at most 850 MiB to the disk and, if asked to, 34 MiB to the object store, for about 12 seconds, and removes it all again.
    /// Exit code 0 unless something keeps a role from running. Example:
    ///   thermocline doctor --dir /data/bookie --metadata etcd://10.0.0.1:2379 --cold s3://bucket/prefix
    #[command(verbatim_doc_comment)]
    Doctor(DoctorArgs),
    /// Show a running node: bookies, ledgers by tier, bytes, memory budgets.
    Status(RemoteArgs),
    /// Look at an object store before it is trusted with anything.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Show the effective configuration and where each value comes from.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Measure this machine and Thermocline on it: every figure beside the machine's own limit for the same work.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print the version and what this build was made from.
    Version {
        /// How to print it.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Print a completion script for a shell.
    ///
    /// For bash: thermocline completions bash > ~/.local/share/bash-completion/completions/thermocline
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// `thermocline demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// A log file or a folder of them, read as bytes, a line an entry. May be given several times.
    ///
    /// Without it: readable text logs under /var/log, topped up with sources from cargo's registry folder to 64 MiB. That default
    /// is refused with a remote --cold store, since logs must not leave the machine unasked.
    #[arg(long, value_name = "PATH")]
    pub input: Vec<PathBuf>,
    /// Where the node, or the cluster, keeps its data. Must be empty or not exist.
    ///
    /// Without it: a new folder under /var/tmp, removed at the end unless --keep.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The object store: file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.
    ///
    /// Credentials come from the usual environment variables of each cloud. Without it: a folder beside the node's data.
    #[arg(long, value_name = "URL")]
    pub cold: Option<Url>,
    /// At the end stop the bookies, delete their directories, and replay the settled ledgers from objects alone.
    #[arg(long, conflicts_with = "keep")]
    pub prove_cold: bool,
    /// Leave the node running at the end and print commands to look at it.
    #[arg(long)]
    pub keep: bool,
    /// Run a whole cluster of processes instead, and kill one of each kind while it is written to and read from.
    ///
    /// Starts etcd, three bookies, two gateways and two offloaders on loopback. Writers keep a log of what was acknowledged, readers
    /// compare with it, ledgers are settled and released meanwhile, and a bookie, a gateway, an offloader and etcd are killed with
    /// -9 and started again, one after the other. Exit code 0 means: everything acknowledged came back equal through each gateway,
    /// and each settled ledger has exactly one object, which is whole. Needs the program etcd (package etcd-server).
    #[arg(long, conflicts_with_all = ["input", "prove_cold", "keep"])]
    pub cluster: bool,
    /// (with --cluster) For how long processes are killed while writers and readers run [default: 40]
    #[arg(long, value_name = "N", requires = "cluster", value_parser = clap::value_parser!(u64).range(5..=86_400))]
    pub seconds: Option<u64>,
    /// (with --cluster) How often one of each kind is killed [default: 2]
    #[arg(long, value_name = "N", requires = "cluster", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,
    /// (with --cluster) The program etcd [default: the one on the search path]
    #[arg(long, value_name = "PATH", requires = "cluster")]
    pub etcd: Option<PathBuf>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// Settings of the bookie for a kind of disk, above the defaults and below file, environment and flags. Only where there is a bookie;
    /// `thermocline config show --role bookie --profile NAME` prints what it sets.
    #[arg(long, value_enum, value_name = "NAME")]
    pub profile: Option<Profile>,
    /// A TOML configuration file. See `thermocline config show` for all keys of a standalone node, with --role for those of a role.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Set one key, for example --set offloader.hot_retention=1h. May be given several times; wins over file and environment.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// `thermocline standalone`.
#[derive(Debug, Clone, Args)]
pub struct StandaloneArgs {
    /// Where the node keeps its data [default: thermocline-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The address of the gRPC front [default: 127.0.0.1:9600]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The address of metrics and health over HTTP, or off [default: loopback, 1000 above the port of --listen]
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// The object store: file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix [default: a folder in --dir]
    #[arg(long, value_name = "URL")]
    pub cold: Option<Url>,
    /// Kill this process with SIGKILL at a step of the offload protocol: before:STEP or after:STEP. For crash tests.
    #[arg(long, value_name = "WHEN:STEP[:N]", hide = true)]
    pub kill_at: Option<KillAt>,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Who may speak to it.
    #[command(flatten)]
    pub guard: GuardArgs,
    /// How it introduces itself.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `thermocline bookie`: the role with its options, or a command about a bookie.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BookieArgs {
    /// A command instead of the role.
    #[command(subcommand)]
    pub command: Option<BookieCommand>,
    /// The bookie's id, for life [default: the one its directory has; for a new directory the address it registers]
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// Where the bookie keeps its data [default: thermocline-bookie]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The cluster's metadata [default: etcd://127.0.0.1:2379]
    ///
    /// etcd://host:port[,host:port…][/root], etcds:// with TLS, zk://host:port[,host:port…]/ledgers. embedded:/path is for one
    /// process only and serves to try a bookie alone.
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// The address it listens on, for clients of the BookKeeper protocol [default: 127.0.0.1:3181]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// The address of metrics and health over HTTP, or off [default: loopback, 1000 above the port of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// The address it registers, where clients reach it. Needed with --listen 0.0.0.0 [default: the one it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Who may speak to it.
    #[command(flatten)]
    pub guard: GuardArgs,
    /// How it introduces itself where it relays reads to.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `thermocline gateway`.
#[derive(Debug, Clone, Args)]
pub struct GatewayArgs {
    /// The name it registers [default: host and port of its endpoint]
    #[arg(long, value_name = "NAME")]
    pub id: Option<String>,
    /// The cluster's metadata [default: etcd://127.0.0.1:2379]
    ///
    /// etcd://host:port[,host:port…][/root], etcds:// with TLS, zk://host:port[,host:port…]/ledgers.
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// The cluster's object store, the same for all roles: s3://…, gs://…, az://…, or file:///path for a folder they all reach.
    #[arg(long, value_name = "URL")]
    pub cold: Option<Url>,
    /// The address of the gRPC front [default: 127.0.0.1:9600]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// The address of metrics and health over HTTP, or off [default: loopback, 1000 above the port of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// The address it registers, where offloaders reach it. Needed with --listen 0.0.0.0 [default: the one it listens on]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Who may speak to it.
    #[command(flatten)]
    pub guard: GuardArgs,
    /// How it introduces itself.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `thermocline offloader`.
#[derive(Debug, Clone, Args)]
pub struct OffloaderArgs {
    /// The cluster's metadata [default: etcd://127.0.0.1:2379]
    ///
    /// etcd://host:port[,host:port…][/root], etcds:// with TLS, zk://host:port[,host:port…]/ledgers.
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// The cluster's object store, the same for all roles: s3://…, gs://…, az://…, or file:///path for a folder they all reach.
    #[arg(long, value_name = "URL")]
    pub cold: Option<Url>,
    /// The address of the gRPC front, for orders and status [default: 127.0.0.1:9610]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// The address of metrics and health over HTTP, or off [default: loopback, 1000 above the port of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,
    /// Kill this process with SIGKILL at a step of the offload protocol: before:STEP or after:STEP. For crash tests.
    #[arg(long, value_name = "WHEN:STEP[:N]", hide = true)]
    pub kill_at: Option<KillAt>,
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// How it introduces itself.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// The settings that flags give, by key; those of flags that were not given are left to file and environment.
fn flags<'a>(given: impl IntoIterator<Item = (&'a str, Option<String>)>) -> Vec<(String, String)> {
    given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

impl StandaloneArgs {
    /// The settings that the flags give.
    #[must_use]
    pub fn flags(&self) -> Vec<(String, String)> {
        let mut given = flags([
            ("dir", self.dir.as_ref().map(|dir| dir.display().to_string())),
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
            ("cold", self.cold.as_ref().map(Url::to_string)),
        ]);
        given.extend(self.guard.flags());
        given.extend(self.connect.flags());
        given
    }
}

impl BookieArgs {
    /// The settings that the flags give.
    #[must_use]
    pub fn flags(&self) -> Vec<(String, String)> {
        let mut given = flags([
            ("id", self.id.clone()),
            ("dir", self.dir.as_ref().map(|dir| dir.display().to_string())),
            ("metadata", self.metadata.clone()),
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
            ("advertise", self.advertise.clone()),
        ]);
        given.extend(self.guard.flags());
        given.extend(self.connect.flags());
        given
    }
}

impl GatewayArgs {
    /// The settings that the flags give.
    #[must_use]
    pub fn flags(&self) -> Vec<(String, String)> {
        let mut given = flags([
            ("id", self.id.clone()),
            ("metadata", self.metadata.clone()),
            ("cold", self.cold.as_ref().map(Url::to_string)),
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
            ("advertise", self.advertise.clone()),
        ]);
        given.extend(self.guard.flags());
        given.extend(self.connect.flags());
        given
    }
}

impl OffloaderArgs {
    /// The settings that the flags give.
    #[must_use]
    pub fn flags(&self) -> Vec<(String, String)> {
        let mut given = flags([
            ("metadata", self.metadata.clone()),
            ("cold", self.cold.as_ref().map(Url::to_string)),
            ("listen", self.listen.clone()),
            ("admin", self.admin.clone()),
        ]);
        given.extend(self.connect.flags());
        given
    }
}

/// `thermocline doctor`.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// The directory of a node or bookie; it need not exist yet [default: the setting dir, thermocline-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Also measure a metadata store: etcd://host:port,host:port/root or embedded:/path (of a node that is stopped)
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// Also measure an object store: file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL")]
    pub cold: Option<Url>,
    /// How long to measure, about.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(2..=600), value_name = "N")]
    pub seconds: u64,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// The configuration of a standalone node, whose sizes the machine is held against.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// How to reach a running node.
#[derive(Debug, Clone, Args)]
pub struct RemoteArgs {
    /// The gRPC front: of a gateway for ledgers, of an offloader for orders and status, of a standalone node for both.
    #[arg(long, default_value = DEFAULT_ENDPOINT, env = "THERMOCLINE_ENDPOINT", value_name = "URL")]
    pub endpoint: String,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline ledger …`.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Create a ledger and print its id. It stays open for `ledger write` until closed.
    Create(CreateArgs),
    /// Append lines, or length-prefixed records, from standard input or files.
    ///
    /// Each entry is durable on an ack quorum of bookies before it is counted. Examples:
    ///   thermocline ledger write new < app.log              (a new ledger, closed at the end)
    ///   thermocline ledger write 12 app.log --keep-open     (append to ledger 12 and leave it open)
    #[command(verbatim_doc_comment)]
    Write(WriteArgs),
    /// Write the payloads of a ledger's entries to standard output, from whichever tier holds them.
    ///
    /// Example: thermocline ledger read 12 --from 100 --to 200 > part.log
    Read(ReadArgs),
    /// Show one ledger: state, end, members, custom metadata, where its cold copy is.
    Show {
        /// The ledger.
        ledger: u64,
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// List ledgers with their state and tier.
    Ls {
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// Close a ledger for good. One whose writer is gone is recovered first: fenced, and everything acknowledged is kept.
    Close {
        /// The ledger.
        ledger: u64,
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// Delete a ledger's metadata; bookies then free its space.
    ///
    /// Its object, if it has one, is left in the store: collecting objects of deleted ledgers is a later capability.
    Rm {
        /// The ledger.
        ledger: u64,
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
}

/// Digest that guards each entry from the writer to the last reader.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Digest {
    /// CRC-32C, in hardware on current processors.
    Crc32c,
    /// CRC-32 (IEEE).
    Crc32,
    /// HMAC-SHA1 keyed by the ledger's password.
    Hmac,
    /// No digest.
    Dummy,
}

/// `thermocline ledger create`.
#[derive(Debug, Clone, Args)]
pub struct CreateArgs {
    /// How many bookies hold the ledger (E).
    #[arg(long, default_value_t = 3)]
    pub ensemble: u32,
    /// How many of them get each entry (Qw).
    #[arg(long, default_value_t = 3)]
    pub write_quorum: u32,
    /// How many must have it durable before it is acknowledged (Qa).
    #[arg(long, default_value_t = 2)]
    pub ack_quorum: u32,
    /// The digest of each entry.
    #[arg(long, value_enum, default_value_t = Digest::Crc32c)]
    pub digest: Digest,
    /// Custom metadata, key=value. May be given several times.
    #[arg(long = "meta", value_name = "KEY=VALUE")]
    pub meta: Vec<String>,
    /// The node.
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// How entries are cut from, or joined into, a stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Framing {
    /// A line an entry: without its line feed when written, with one when read.
    Lines,
    /// Each entry after its length as four bytes, big-endian: any bytes survive.
    Length,
    /// (reading only) payloads one after the other with nothing between.
    Raw,
}

/// The ledger that `ledger write` appends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A new one.
    New,
    /// An open one, by id.
    Existing(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "new" => Ok(Self::New),
            id => id.parse().map(Self::Existing).map_err(|_| "give a ledger's number, or the word new".to_owned()),
        }
    }
}

/// `thermocline ledger write`.
#[derive(Debug, Clone, Args)]
pub struct WriteArgs {
    /// The ledger to append to, which must be open at this node; or `new` to create one (E=3 Qw=3 Qa=2, CRC-32C).
    pub ledger: Target,
    /// Files to read; standard input without any.
    pub files: Vec<PathBuf>,
    /// Do not close the ledger at the end.
    #[arg(long)]
    pub keep_open: bool,
    /// How the input is cut into entries.
    #[arg(long, value_enum, default_value_t = Framing::Lines)]
    pub framing: Framing,
    /// The node.
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// `thermocline ledger read`.
#[derive(Debug, Clone, Args)]
pub struct ReadArgs {
    /// The ledger.
    pub ledger: u64,
    /// The first entry.
    #[arg(long, default_value_t = 0)]
    pub from: u64,
    /// The entry to stop before. Without it: the ledger's end, or for an open ledger the last confirmed entry.
    #[arg(long)]
    pub to: Option<u64>,
    /// How entries are written to standard output.
    #[arg(long, value_enum, default_value_t = Framing::Lines)]
    pub framing: Framing,
    /// Read from one tier only (for looking at a tier; by default the node chooses).
    #[arg(long, value_enum, default_value_t = Tier::Any)]
    pub tier: Tier,
    /// The gRPC front of a gateway or standalone node.
    #[arg(long, default_value = DEFAULT_ENDPOINT, env = "THERMOCLINE_ENDPOINT", value_name = "URL")]
    pub endpoint: String,
}

/// Which tier to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tier {
    /// Whichever holds the entry.
    Any,
    /// The bookies.
    Hot,
    /// The object store.
    Cold,
}

/// `thermocline offload …`.
#[derive(Debug, Subcommand)]
pub enum OffloadCommand {
    /// Settle a closed ledger now: write its Parquet object, read it back, verify, commit.
    Now {
        /// The ledgers.
        #[arg(required = true)]
        ledgers: Vec<u64>,
        /// Also release the bookies' copies at once, without waiting for the hot retention.
        #[arg(long)]
        release: bool,
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// Show how much is hot, settled and released.
    Status {
        /// The node.
        #[command(flatten)]
        remote: RemoteArgs,
    },
}

/// What a process of Thermocline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// All roles in one process.
    Standalone,
    /// A storage node.
    Bookie,
    /// The gRPC front.
    Gateway,
    /// Settles and releases ledgers.
    Offloader,
}

/// `thermocline config …`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every key with its value and where it comes from: default, profile, file, environment or flag.
    ///
    /// Environment variables are THERMOCLINE_ and the key in capitals with two underscores for each dot:
    /// THERMOCLINE_OFFLOADER__HOT_RETENTION=1h sets offloader.hot_retention.
    Show {
        /// Whose configuration: that of a standalone node, or of one role of a cluster.
        #[arg(long, value_enum, default_value_t = Role::Standalone)]
        role: Role,
        /// The configuration.
        #[command(flatten)]
        config: ConfigArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}
