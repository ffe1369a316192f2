//! The outcome words of the BookKeeper protocol, and their numbers in both versions.

/// Outcome of a BookKeeper request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Ok,
    /// The bookie has never held this ledger.
    NoLedger,
    /// The bookie has never held this entry.
    NoEntry,
    /// The request makes no sense or is not supported.
    BadRequest,
    /// Input or output failed, or stored bytes are damaged: nothing is known about the entry.
    Io,
    /// The master key is missing or not the ledger's.
    Unauthorized,
    /// The protocol version is not supported.
    BadVersion,
    /// The ledger is fenced; a normal add cannot succeed any more.
    Fenced,
    /// The bookie accepts no adds at present.
    ReadOnly,
    /// Over a limit; the same request may succeed later.
    TooManyRequests,
    /// The bookie may have lost data of this ledger and cannot tell what it held.
    UnknownLedgerState,
}

impl Status {
    /// Every status, once.
    pub const ALL: [Status; 11] = [
        Status::Ok,
        Status::NoLedger,
        Status::NoEntry,
        Status::BadRequest,
        Status::Io,
        Status::Unauthorized,
        Status::BadVersion,
        Status::Fenced,
        Status::ReadOnly,
        Status::TooManyRequests,
        Status::UnknownLedgerState,
    ];

    /// The number on version 2 connections.
    ///
    /// `UnknownLedgerState` becomes the I/O error: its own number, 107, makes Java clients drop the connection, and both mean
    /// that nothing is known.
    pub fn v2(self) -> i32 {
        match self {
            Status::Ok => 0,
            Status::NoLedger => 1,
            Status::NoEntry => 2,
            Status::BadRequest => 100,
            Status::Io | Status::UnknownLedgerState => 101,
            Status::Unauthorized => 102,
            Status::BadVersion => 103,
            Status::Fenced => 104,
            Status::ReadOnly => 105,
            Status::TooManyRequests => 106,
        }
    }

    /// The number on version 3 connections (`StatusCode`).
    pub fn v3(self) -> i32 {
        match self {
            Status::Ok => 0,
            Status::NoLedger => 402,
            Status::NoEntry => 403,
            Status::BadRequest => 404,
            Status::Io => 501,
            Status::Unauthorized => 502,
            Status::BadVersion => 503,
            Status::Fenced => 504,
            Status::ReadOnly => 505,
            Status::TooManyRequests => 506,
            Status::UnknownLedgerState => 507,
        }
    }

    /// Reads a version 2 number; `None` for numbers the protocol does not name.
    pub fn from_v2(code: i32) -> Option<Self> {
        if code == 107 {
            return Some(Status::UnknownLedgerState);
        }
        Self::ALL.into_iter().find(|status| status.v2() == code)
    }

    /// Reads a version 3 number; `None` for numbers the protocol does not name.
    pub fn from_v3(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.v3() == code)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bookkeeper::StatusCode;

    #[test]
    fn numbers_round_trip() {
        for status in Status::ALL {
            assert_eq!(Status::from_v3(status.v3()), Some(status));
            assert!(StatusCode::try_from(status.v3()).is_ok());
            let seen = Status::from_v2(status.v2()).unwrap();
            assert!(seen == status || (status == Status::UnknownLedgerState && seen == Status::Io));
            assert_ne!(status.v2(), 107, "107 makes Java clients drop the connection");
        }
        assert_eq!(Status::from_v2(107), Some(Status::UnknownLedgerState));
        assert_eq!(Status::from_v2(3), None);
        assert_eq!(Status::from_v3(1), None);
    }
}
