//! The arguments of `thermocline store`.

use clap::{Args, Subcommand};
use url::Url;

use super::Output;

/// `thermocline store …`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Find out by trying what an object store grants and lacks, and what Thermocline needs each thing for.
    ///
    /// Writes, reads, lists and removes a few small objects below .thermocline-check/ at the given place, and touches nothing else.
    /// Then prints a table, and the least-privilege policy to paste for the credentials Thermocline will use. Exit code 0: all that is
    /// needed works; 1: something needed is missing; 2: the URL or the settings cannot be right.
    ///
    /// Examples:
    ///   thermocline store check file:///srv/cold
    ///   AWS_REGION=eu-central-1 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… thermocline store check s3://logs/cold
    ///   thermocline store check 's3://logs/cold?endpoint=http://127.0.0.1:4566&region=us-east-1'    (another S3, for example localstack/)
    ///   thermocline store check s3://logs/cold --policy > policy.json                              (asks nothing of the store)
    ///
    /// What an s3 URL may say after its ?: endpoint, region, allow_http=true (plain HTTP to another machine), addressing=path or host,
    /// checksum=none, sha256 or crc64nvme (a header some stores want and others refuse). Keys come from the environment only.
    #[command(verbatim_doc_comment)]
    Check(StoreCheckArgs),
}

/// `thermocline store check`.
#[derive(Debug, Clone, Args)]
pub struct StoreCheckArgs {
    /// The store: file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.
    pub url: Url,
    /// Print only the least-privilege policy for this store, and ask nothing of it.
    #[arg(long, conflicts_with = "output")]
    pub policy: bool,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}
