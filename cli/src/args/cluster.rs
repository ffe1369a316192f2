//! The arguments of what administrators do: `thermocline cluster`, `cookie`, `metadata` and `bookie format`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// Where the cluster's metadata is.
#[derive(Debug, Clone, Args)]
pub struct MetadataArgs {
    /// The cluster's metadata: etcd://host:port[,host:port…][/root], etcds:// with TLS, zk://host:port[,host:port…]/ledgers, or
    /// embedded:/path of a node that is stopped
    #[arg(long, value_name = "URI", env = "THERMOCLINE_METADATA", default_value = "etcd://127.0.0.1:2379")]
    pub metadata: String,
}

/// `thermocline cluster …`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make a cluster where there is none, and give it a name
    ///
    /// Writes its identity (INSTANCEID), the layout of ledgers and the name in one transaction.
    /// Nothing is changed where a cluster is already. Roles make a cluster by themselves at their
    /// first start, one without a name: with this command it is clear beforehand where it is and what
    /// it is called. (BookKeeper: initnewcluster)
    ///
    /// A new cluster on etcd lies in our own layout. For BookKeeper's clients with its driver for etcd
    /// make it with etcd+apache:// and a root, for Pulsar's with etcd+hierarchical://; afterwards every
    /// role opens it with etcd://, as those clients do. On ZooKeeper: zk+longhierarchical://, zk+flat://.
    ///
    /// Examples:
    ///   thermocline cluster init --name logs-eu --metadata etcd://10.0.0.9:2379
    ///   thermocline cluster init --name logs-eu --metadata etcd+apache://10.0.0.9:2379/bookkeeper
    #[command(verbatim_doc_comment)]
    Init(ClusterInitArgs),
    /// Show a cluster: identity, bookies, gateways, ledgers by state, attempts
    ///
    /// Reads metadata only, so it works while nothing else runs. Counts every key, which takes a
    /// while in a large cluster. Bookies that are known by their cookie only are down, or were never
    /// removed. (BookKeeper: listbookies, whatisinstanceid)
    ///
    /// Example:
    ///   thermocline cluster show --metadata etcd://10.0.0.9:2379 --output json
    #[command(verbatim_doc_comment)]
    Show(ClusterShowArgs),
    /// Remove a cluster from its metadata store, all of it and for good
    ///
    /// Every ledger is lost: who they were and where their entries are. Bookies' directories
    /// (`thermocline bookie format`) and objects in the object store are not touched. Refused while
    /// any bookie, gateway or offloader is registered. Asks for the cluster's name, or its identity
    /// if it has none; scripts say it with --confirm. A removal that is cut short is refused by every
    /// role, is shown by `cluster show`, and is ended by the same command. (BookKeeper: metaformat,
    /// nukeexistingcluster)
    ///
    /// Examples:
    ///   thermocline cluster format --dry-run                      (what would go)
    ///   thermocline cluster format --confirm logs-eu              (without a question)
    #[command(verbatim_doc_comment)]
    Format(ClusterFormatArgs),
}

/// `thermocline cluster init`.
#[derive(Debug, Clone, Args)]
pub struct ClusterInitArgs {
    /// What people call the cluster: 1 to 64 letters, digits, '-', '_' or '.'
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where.
    #[command(flatten)]
    pub at: MetadataArgs,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline cluster show`.
#[derive(Debug, Clone, Args)]
pub struct ClusterShowArgs {
    /// Where.
    #[command(flatten)]
    pub at: MetadataArgs,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline cluster format`.
#[derive(Debug, Clone, Args)]
pub struct ClusterFormatArgs {
    /// Where.
    #[command(flatten)]
    pub at: MetadataArgs,
    /// The cluster's name (its identity if it has none), instead of typing it at the question
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
    /// Go on although someone is registered: what they do is lost, or written into the emptied store. And remove the target of a copy that
    /// was at its last steps: only where the source still holds the cluster
    #[arg(long)]
    pub force: bool,
    /// Only count what would go
    #[arg(long)]
    pub dry_run: bool,
    /// Kill this process with SIGKILL once so many keys are gone. For crash tests.
    #[arg(long, value_name = "KEYS", hide = true)]
    pub kill_after: Option<u64>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline cookie …`.
#[derive(Debug, Subcommand)]
pub enum CookieCommand {
    /// List the cookies of a cluster: every bookie there ever was (BookKeeper: listcookies)
    List {
        /// Where.
        #[command(flatten)]
        at: MetadataArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Show the cookie of a bookie as it is stored (BookKeeper: cookie_get)
    Show {
        /// The bookie's id.
        bookie: String,
        /// Where.
        #[command(flatten)]
        at: MetadataArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Store a cookie from a file, for a bookie that has none (BookKeeper: cookie_create)
    ///
    /// For a bookie whose data is there while its cookie was lost from metadata: its directory has
    /// the same text in the file VERSION.
    ///
    /// Example:
    ///   thermocline cookie create bookie-1 --file /data/1/VERSION
    #[command(verbatim_doc_comment)]
    Create {
        /// The bookie's id, which the cookie must name.
        bookie: String,
        /// The cookie's text.
        #[arg(long, value_name = "FILE")]
        file: PathBuf,
        /// Where.
        #[command(flatten)]
        at: MetadataArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Remove the cookie of a bookie that is gone for good (BookKeeper: cookie_delete)
    ///
    /// From then on an empty directory may take the bookie's id. Refused while the bookie is registered,
    /// and while ledgers name it: give the new bookie another id then. Only the cookie that was looked at is removed: say its version as `cookie list`
    /// shows it, or type the bookie's id at the question.
    ///
    /// Example:
    ///   thermocline cookie delete bookie-1 --version 17
    #[command(verbatim_doc_comment, disable_version_flag = true)]
    Delete {
        /// The bookie's id.
        bookie: String,
        /// The version of the cookie that was looked at
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
        /// The bookie's id once more, instead of typing it at the question
        #[arg(long, value_name = "ID")]
        confirm: Option<String>,
        /// Where.
        #[command(flatten)]
        at: MetadataArgs,
        /// How the result is printed.
        #[arg(long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Print the cookie that a bookie of this cluster would have (BookKeeper: cookie_generate)
    ///
    /// Nothing is stored: `thermocline cookie create` does that.
    Generate {
        /// The bookie's id.
        bookie: String,
        /// Write it to this new file instead of standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Where.
        #[command(flatten)]
        at: MetadataArgs,
    },
}

/// `thermocline metadata …`.
#[derive(Debug, Subcommand)]
pub enum MetadataCommand {
    /// Copy a cluster's metadata to another store, of whatever driver, and prove that both are equal
    ///
    /// Stop every role first: who is registered at the source is refused, and so are attempts to
    /// settle a ledger that have not ended (--abandon-attempts). The target must be empty. Ledgers,
    /// cookies, counters, catalog and the name are copied byte for byte and read back from both
    /// sides; what lives under a lease is never copied. The identity comes last: half a copy does not
    /// open as a cluster. A copy that is cut short goes on with the same command; after it has ended,
    /// the same command only compares. Then start every role with the new --metadata; none starts at
    /// the source any more. Ids of ledgers go on behind every id that was given, also between etcd and
    /// ZooKeeper, which make them in other ways. Where they cannot, nothing is copied.
    ///
    /// Example:
    ///   thermocline metadata copy --from embedded:/data/metadata --to etcd://10.0.0.9:2379/prod
    #[command(verbatim_doc_comment)]
    Copy(CopyArgs),
}

/// `thermocline metadata copy`.
#[derive(Debug, Clone, Args)]
pub struct CopyArgs {
    /// The store that has the cluster: etcd://host:port/root, etcds://…, zk://host:port/ledgers, embedded:/path of a node that is stopped
    #[arg(long, value_name = "URI")]
    pub from: String,
    /// The store that gets it, an empty one; etcd+apache://… and the like for a layout, as in `cluster init`
    #[arg(long, value_name = "URI")]
    pub to: String,
    /// Abandon attempts to settle a ledger that have not ended: their objects are condemned, the ledgers are settled anew
    #[arg(long)]
    pub abandon_attempts: bool,
    /// Only say what would be copied and what stands in the way
    #[arg(long)]
    pub dry_run: bool,
    /// Kill this process with SIGKILL once so many keys are copied. For crash tests.
    #[arg(long, value_name = "KEYS", hide = true)]
    pub kill_after: Option<u64>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline bookie …`.
#[derive(Debug, Clone, Subcommand)]
pub enum BookieCommand {
    /// Remove a bookie's local data and, with --metadata, its cookie
    ///
    /// Refused while the bookie runs or is registered, and while ledgers name it as a member: their
    /// copies would be lost. Asks for the bookie's id; scripts say it with --confirm. The directory
    /// is empty afterwards and may be given to a new bookie. A removal that is cut short is refused
    /// by a bookie's start and is ended by the same command. (BookKeeper: bookieformat)
    ///
    /// Examples:
    ///   thermocline bookie format --dir /data/1 --metadata etcd://10.0.0.9:2379 --dry-run
    ///   thermocline bookie format --dir /data/1 --metadata etcd://10.0.0.9:2379 --confirm bookie-1
    ///   thermocline bookie format --dir /data/1 --force      (its cluster is gone)
    #[command(verbatim_doc_comment)]
    Format(BookieFormatArgs),
    /// Make a bookie read-only, running or not, until `bookie writable`
    ///
    /// Writers go to other bookies; what it holds is served, and adds of recovery and repair are taken.
    /// Holds over restarts: it is a file, READONLY, in the bookie's directory. For maintenance, and
    /// before a bookie is taken out of the cluster. (BookKeeper: PUT /api/v1/bookie/state/readonly)
    ///
    /// Example:
    ///   thermocline bookie read-only --dir /data/1 --reason "its disk will be replaced"
    #[command(verbatim_doc_comment)]
    ReadOnly(BookieReadOnlyArgs),
    /// Let a bookie take entries again after `bookie read-only`
    ///
    /// Example:
    ///   thermocline bookie writable --dir /data/1
    #[command(verbatim_doc_comment)]
    Writable(BookieDirArgs),
    /// Make the index of a stopped bookie anew from its journal segments
    ///
    /// For a bookie that does not start because its index is lost or damaged. Reads every segment, and
    /// takes over from the old index, where that can be read, which ledgers were dropped. Where it
    /// cannot, or where a segment is damaged, the bookie is marked: at its next start it asks metadata
    /// and the other members of its ledgers what it should hold, and tells nothing as absent before.
    /// The old index is replaced once the new one is complete. May be cut short and begun again.
    ///
    /// Example:
    ///   thermocline bookie rebuild-index --dir /data/1
    #[command(verbatim_doc_comment)]
    RebuildIndex(BookieRebuildArgs),
    /// Read all journal segments of a stopped bookie and say which are damaged; exit code 1 if any is
    ///
    /// Every group and record is checked, and each segment's own index compared with its records.
    /// Nothing is changed.
    ///
    /// Example:
    ///   thermocline bookie check --dir /data/1
    #[command(verbatim_doc_comment)]
    Check(BookieDirArgs),
    /// List the ledgers in the journal segments of a stopped bookie
    ///
    /// Example:
    ///   thermocline bookie list --dir /data/1 --output json
    #[command(verbatim_doc_comment)]
    List(BookieDirArgs),
    /// List the records of one journal segment of a stopped bookie, without their bodies
    ///
    /// Example:
    ///   thermocline bookie dump --dir /data/1 --segment 000000000000001a.seg --ledger 7
    #[command(verbatim_doc_comment)]
    Dump(BookieDumpArgs),
}

/// `thermocline bookie read-only`.
#[derive(Debug, Clone, Args)]
pub struct BookieReadOnlyArgs {
    /// The bookie's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Why, for whoever looks at the bookie's state
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline bookie check`, `list` and `writable`.
#[derive(Debug, Clone, Args)]
pub struct BookieDirArgs {
    /// The bookie's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline bookie dump`.
#[derive(Debug, Clone, Args)]
pub struct BookieDumpArgs {
    /// The bookie's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// The segment: the name of its file in DIR/journal, or its number in hexadecimal
    #[arg(long, value_name = "SEGMENT")]
    pub segment: String,
    /// Only records about this ledger
    #[arg(long, value_name = "ID")]
    pub ledger: Option<u64>,
    /// How the records are printed: a table, or one JSON object a line
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline bookie rebuild-index`.
#[derive(Debug, Clone, Args)]
pub struct BookieRebuildArgs {
    /// The bookie's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `thermocline bookie format`.
#[derive(Debug, Clone, Args)]
pub struct BookieFormatArgs {
    /// The bookie's directory
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Its cluster's metadata: etcd://host:port[,host:port…][/root], etcds:// with TLS, or embedded:/path of a node that is stopped
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// The bookie's id, instead of typing it at the question
    #[arg(long, value_name = "ID")]
    pub confirm: Option<String>,
    /// Go on although ledgers name the bookie, or although it is not known (without --metadata)
    #[arg(long)]
    pub force: bool,
    /// Only say what would go and what stands in the way
    #[arg(long)]
    pub dry_run: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::args::Cli;

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }
}
