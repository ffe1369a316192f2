//! What an error of etcd, or of the way to it, says about the request: pure.
//!
//! A commit is told as surely not done only for the answers listed in [`judge`], each of which etcd gives before it does anything,
//! and for a connection that was never made. All others are unclear. Three that look sure and are not:
//! - *database space exceeded*: the applier of a member that runs out of space does the transaction and then answers this;
//! - *request timed out*, *leader changed*, *server stopped*: the proposal may be decided later;
//! - a connection that broke, whatever the code: the request may have been read before.

use std::error::Error as StdError;
use std::time::Duration;

use tonic::{Code, ConnectError, Status};

use crate::{CommitError, Error, ErrorKind};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It never left: no connection was made. Another endpoint may be asked, for commits too.
    NotSent,
    /// Refused before anything was done.
    Refused(ErrorKind),
    /// Refused before anything was done, because of who asks.
    Denied,
    /// As [`Verdict::Denied`], because of the token that was shown: another one may be good.
    TokenRefused,
    /// An answer came and was too long to take in. Whatever was asked was done.
    TooLong,
    /// Nobody knows.
    Unclear,
}

/// A call that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) verdict: Verdict,
    pub(super) error: Error,
}

impl Failure {
    /// `what` was asked of `endpoint`, which answered `error`.
    pub(super) fn answered(what: &str, endpoint: &str, error: &etcd_client::Error) -> Self {
        let verdict = judge(error);
        let kind = match verdict {
            Verdict::Refused(kind) => kind,
            Verdict::NotSent | Verdict::Denied | Verdict::TokenRefused | Verdict::TooLong | Verdict::Unclear => {
                ErrorKind::Unavailable
            }
        };
        Self { verdict, error: Error::new(kind, format!("{what}: etcd at {endpoint}: {}", reason(error))) }
    }

    /// `endpoint` did not answer in time.
    pub(super) fn silent(what: &str, endpoint: &str, waited: Duration) -> Self {
        let message = format!("{what}: etcd at {endpoint} did not answer within {} ms", waited.as_millis());
        Self { verdict: Verdict::Unclear, error: Error::new(ErrorKind::Unavailable, message) }
    }

    /// Whether the same call may go better at another endpoint, or on a new connection.
    pub(super) fn is_passing(&self) -> bool {
        match self.verdict {
            Verdict::NotSent | Verdict::Unclear => true,
            Verdict::Refused(kind) => kind == ErrorKind::Unavailable,
            Verdict::Denied | Verdict::TokenRefused | Verdict::TooLong => false,
        }
    }

    /// As the outcome of a commit.
    pub(super) fn of_commit(self) -> CommitError {
        match self.verdict {
            Verdict::NotSent | Verdict::Refused(_) | Verdict::Denied | Verdict::TokenRefused => {
                CommitError::NotDone(self.error)
            }
            Verdict::TooLong | Verdict::Unclear => CommitError::Unknown(self.error),
        }
    }
}

pub(super) fn judge(error: &etcd_client::Error) -> Verdict {
    match error {
        etcd_client::Error::GRpcStatus(status) => judge_status(status),
        // The server's reason for ending a watch it was asked for, as text only.
        etcd_client::Error::WatchError(reason) => {
            DENIALS.iter().find(|(denial, _)| reason.contains(denial)).map_or(Verdict::Unclear, |(_, verdict)| *verdict)
        }
        etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_) => Verdict::Refused(ErrorKind::Invalid),
        _ => Verdict::Unclear,
    }
}

/// Answers about who asks. etcd looks at that before anything else, and once more before it applies a proposal. A new login helps
/// where the token is at fault: a member that was restarted knows none, and a change of users or rights makes all of them old.
const DENIALS: [(&str, Verdict); 6] = [
    ("user name is empty", Verdict::TokenRefused),
    ("authentication failed, invalid user ID or password", Verdict::Denied),
    ("authentication is not enabled", Verdict::Denied),
    ("revision of auth store is old", Verdict::TokenRefused),
    ("permission denied", Verdict::Denied),
    ("invalid auth token", Verdict::TokenRefused),
];

/// The exact texts are part of etcd's interface (`api/v3rpc/rpctypes`); its own clients compare them too.
fn judge_status(status: &Status) -> Verdict {
    if never_connected(status) {
        return Verdict::NotSent;
    }
    let answer = status.message().strip_prefix("etcdserver: ");
    match (status.code(), answer) {
        (Code::NotFound, Some("requested lease not found")) => Verdict::Refused(ErrorKind::LeaseGone),
        (
            Code::InvalidArgument,
            Some(
                "key is not provided"
                | "duplicate key given in txn request"
                | "too many operations in txn request"
                | "request is too large",
            ),
        ) => Verdict::Refused(ErrorKind::Invalid),
        // Asked before the proposal: with `hasleader`, and when too much is waiting to be applied.
        (Code::Unavailable, Some("no leader")) | (Code::ResourceExhausted, Some("too many requests")) => {
            Verdict::Refused(ErrorKind::Unavailable)
        }
        (
            Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied | Code::Unauthenticated,
            Some(said),
        ) => DENIALS.iter().find(|(denial, _)| *denial == said).map_or(Verdict::Unclear, |(_, verdict)| *verdict),
        (Code::OutOfRange, None) if status.message().contains("message length too large") => Verdict::TooLong,
        _ => Verdict::Unclear,
    }
}

/// Only tonic's own connector makes this error, and it is met before the request is handed to any connection.
fn never_connected(status: &Status) -> bool {
    sources(status).any(|source| source.is::<ConnectError>())
}

fn sources<'a>(error: &'a dyn StdError) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |error: &&'a (dyn StdError + 'static)| (*error).source())
}

/// For people: what was said, and the root of it.
pub(super) fn reason(error: &etcd_client::Error) -> String {
    let etcd_client::Error::GRpcStatus(status) = error else { return error.to_string() };
    let said = if status.message().is_empty() { status.code().description() } else { status.message() };
    match sources(status).last().map(ToString::to_string) {
        Some(root) if root != said => format!("{said}: {root}"),
        _ => said.to_owned(),
    }
}
