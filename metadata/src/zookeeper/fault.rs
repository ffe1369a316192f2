//! What an error of ZooKeeper, or of the way to it, says about the request: pure.
//!
//! ZooKeeper decides a request before it does anything, so each of its own answers but success says that nothing was done. A
//! connection that was lost says nothing, whatever the client calls it: the request may have been read before.

use std::time::Duration;

use zookeeper_client::Error as ClientError;

use crate::{CommitError, Error, ErrorKind};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It never left this process.
    NotSent,
    /// Refused before anything was done.
    Refused(ErrorKind),
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
    /// `what` was answered by `error`.
    pub(super) fn answered(what: &str, error: &ClientError) -> Self {
        let verdict = judge(error);
        let kind = match verdict {
            Verdict::Refused(kind) => kind,
            Verdict::NotSent | Verdict::Unclear => ErrorKind::Unavailable,
        };
        Self { verdict, error: Error::new(kind, format!("{what}: ZooKeeper: {error}")) }
    }

    /// No answer came in time.
    pub(super) fn silent(what: &str, waited: Duration) -> Self {
        let message = format!("{what}: ZooKeeper did not answer within {} ms", waited.as_millis());
        Self { verdict: Verdict::Unclear, error: Error::new(ErrorKind::Unavailable, message) }
    }

    /// There is no connection to send it on.
    pub(super) fn unsent(error: Error) -> Self {
        Self { verdict: Verdict::NotSent, error }
    }

    /// Whether the same call may go better on a new connection.
    pub(super) fn is_passing(&self) -> bool {
        match self.verdict {
            Verdict::NotSent | Verdict::Unclear => true,
            Verdict::Refused(kind) => kind == ErrorKind::Unavailable,
        }
    }

    /// As the outcome of a commit.
    pub(super) fn of_commit(self) -> CommitError {
        match self.verdict {
            Verdict::NotSent | Verdict::Refused(_) => CommitError::NotDone(self.error),
            Verdict::Unclear => CommitError::Unknown(self.error),
        }
    }
}

pub(super) fn judge(error: &ClientError) -> Verdict {
    use ClientError as E;
    match error {
        // The channel to the session's task is closed, or its session never came to be.
        E::ClientClosed | E::NoHosts => Verdict::NotSent,
        // A server that forgot the session says so before it looks at the request, and for all requests after it.
        E::SessionExpired | E::SessionMoved | E::NotReadOnly | E::Throttled => Verdict::Refused(ErrorKind::Unavailable),
        E::NoNode
        | E::NodeExists
        | E::BadVersion
        | E::NotEmpty
        | E::NoAuth
        | E::AuthFailed
        | E::InvalidAcl
        | E::QuotaExceeded
        | E::NoChildrenForEphemerals
        | E::BadArguments(_)
        | E::MarshallingError
        | E::Unimplemented => Verdict::Refused(ErrorKind::Invalid),
        _ => Verdict::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_are_sure() {
        for (error, want) in [
            (ClientError::ClientClosed, Verdict::NotSent),
            (ClientError::SessionExpired, Verdict::Refused(ErrorKind::Unavailable)),
            (ClientError::Throttled, Verdict::Refused(ErrorKind::Unavailable)),
            (ClientError::NoAuth, Verdict::Refused(ErrorKind::Invalid)),
            (ClientError::ConnectionLoss, Verdict::Unclear),
            (ClientError::Timeout, Verdict::Unclear),
            (ClientError::UnexpectedErrorCode(-1), Verdict::Unclear),
            (ClientError::UnexpectedError("x".into()), Verdict::Unclear),
        ] {
            assert_eq!(judge(&error), want, "{error}");
            let surely = !matches!(Failure::answered("commit", &error).of_commit(), CommitError::Unknown(_));
            assert_eq!(surely, want != Verdict::Unclear, "{error}");
        }
        let silent = Failure::silent("commit metadata", Duration::from_secs(5));
        assert_eq!(silent.error.to_string(), "commit metadata: ZooKeeper did not answer within 5000 ms");
        assert!(matches!(silent.of_commit(), CommitError::Unknown(_)));
    }
}
