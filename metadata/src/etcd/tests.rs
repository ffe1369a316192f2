//! The pure parts.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, ConnectError, Status};

use super::fault::{Failure, Verdict, judge, reason};
use super::names::ttl_seconds;
use super::request::Answer;
use super::{Access, Target};
use crate::{CommitError, ErrorKind, Expect, Key, LeaseId, LedgerLayout, Transaction, Version, Versioned};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

#[test]
fn uris_name_endpoints_and_a_root() {
    let check = |uri: &str, endpoints: &[&str], root: &str, tls: bool| {
        let target = Target::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
        assert_eq!(target.layout, None, "{uri}");
        assert_eq!((target.root.as_str(), target.tls), (root, tls), "{uri}");
        assert_eq!(target.endpoints, endpoints, "{uri}");
    };
    check("etcd://127.0.0.1:4001", &["127.0.0.1:4001"], "", false);
    check("etcd://meta", &["meta:2379"], "", false);
    check("etcd://a:1,b:2,c/", &["a:1", "b:2", "c:2379"], "", false);
    check("etcds://a:1/clusters/one", &["a:1"], "/clusters/one", true);
    check("etcd+null://a:1/x", &["a:1"], "/x", false);
    check("etcd://[::1]:4001,[fe80::1]/x", &["[::1]:4001", "[fe80::1]:2379"], "/x", false);
}

#[test]
fn uris_name_a_layout() {
    for (uri, layout, tls) in [
        ("etcd+apache://a:1/bookkeeper", LedgerLayout::Etcd, false),
        ("etcds+apache://a:1/x/ledgers", LedgerLayout::Etcd, true),
        ("etcd+hierarchical://a:1", LedgerLayout::Hierarchical, false),
        ("etcds+longhierarchical://a:1/x", LedgerLayout::LongHierarchical, true),
    ] {
        let target = Target::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
        assert_eq!((target.layout, target.tls), (Some(layout), tls), "{uri}");
    }
}

#[test]
fn bad_uris_are_refused_and_tell_no_secret() {
    for (uri, why) in [
        ("etcd:127.0.0.1:2379", "does not begin with etcd://"),
        ("etcd://", "no host:port"),
        ("etcd:///root", "no host:port"),
        ("etcd://a:1,,b:2", "no host:port"),
        ("etcd://a:b", "no host:port"),
        ("etcd://a:0", "no host:port"),
        ("etcd://a:70000", "no host:port"),
        ("etcd://::1", "no host:port"),
        ("etcd://[::1", "no host:port"),
        ("etcd://a b:1", "no host:port"),
        ("etcd://a:1/x//y", "root"),
        ("etcd://a:1/ledgers/x", "segment \"ledgers\""),
        ("etcd+apache://a:1/x/bookies/y", "segment \"bookies\""),
        ("etcd+apache://a:1", "needs a root"),
        ("etcd+flat://a:1/x", "etcd+hierarchical://"),
        ("etcd://a:1/prod/thermocline", "segment \"thermocline\""),
        ("etcd://a:1?ttl=3", "takes none"),
        ("etcd://root:hunter2@a:1", "THERMOCLINE_ETCD_PASSWORD"),
        ("etcd://root:hunter2@a:1?x", "THERMOCLINE_ETCD_PASSWORD"),
    ] {
        let error = Target::parse(uri).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{uri}");
        assert!(error.to_string().contains(why), "{uri}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn credentials_come_in_pairs_and_are_not_shown() {
    let from = |set: &[(&str, &str)]| {
        Access::from_variables(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    };
    assert!(from(&[]).unwrap().user.is_none());
    let access = from(&[("THERMOCLINE_ETCD_USER", "ann"), ("THERMOCLINE_ETCD_PASSWORD", "hunter2")]).unwrap();
    let shown = format!("{access:?}");
    assert!(shown.contains("ann") && !shown.contains("hunter2"), "{shown}");
    let half = from(&[("THERMOCLINE_ETCD_USER", "ann")]).unwrap_err();
    assert!(half.to_string().contains("one is missing"), "{half}");
    let lost = from(&[("THERMOCLINE_ETCD_CA_FILE", "/nonexistent/ca.pem")]).unwrap_err();
    assert!(lost.to_string().contains("/nonexistent/ca.pem"), "{lost}");
}

#[test]
fn leases_are_never_shorter_than_asked() {
    for (asked_ms, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (10_000, 10)] {
        assert_eq!(ttl_seconds(Duration::from_millis(asked_ms)).unwrap(), seconds);
    }
    assert_eq!(ttl_seconds(Duration::MAX).unwrap_err().kind(), ErrorKind::Invalid);
}

fn status(code: Code, message: &str) -> etcd_client::Error {
    etcd_client::Error::GRpcStatus(Status::new(code, message))
}

/// An error as tonic makes it when the connector fails.
fn refused_connection() -> etcd_client::Error {
    let refused = ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
    etcd_client::Error::GRpcStatus(Status::from_error(Box::new(refused)))
}

#[test]
fn only_answers_from_before_anything_was_done_are_sure() {
    use Code::{
        Cancelled, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound, OutOfRange,
        PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable, Unknown,
    };
    assert_eq!(judge(&refused_connection()), Verdict::NotSent);
    for (code, message, want) in [
        (NotFound, "etcdserver: requested lease not found", Verdict::Refused(ErrorKind::LeaseGone)),
        (InvalidArgument, "etcdserver: request is too large", Verdict::Refused(ErrorKind::Invalid)),
        (InvalidArgument, "etcdserver: too many operations in txn request", Verdict::Refused(ErrorKind::Invalid)),
        (Unavailable, "etcdserver: no leader", Verdict::Refused(ErrorKind::Unavailable)),
        (ResourceExhausted, "etcdserver: too many requests", Verdict::Refused(ErrorKind::Unavailable)),
        (PermissionDenied, "etcdserver: permission denied", Verdict::Denied),
        (Unauthenticated, "etcdserver: invalid auth token", Verdict::TokenRefused),
        (InvalidArgument, "etcdserver: user name is empty", Verdict::TokenRefused),
        (InvalidArgument, "etcdserver: revision of auth store is old", Verdict::TokenRefused),
        (InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", Verdict::Denied),
        (FailedPrecondition, "etcdserver: authentication is not enabled", Verdict::Denied),
        (OutOfRange, "Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes", Verdict::TooLong),
        // These look sure and are not.
        (ResourceExhausted, "etcdserver: mvcc: database space exceeded", Verdict::Unclear),
        (Unavailable, "etcdserver: request timed out", Verdict::Unclear),
        (Unavailable, "etcdserver: request timed out, possibly due to previous leader failure", Verdict::Unclear),
        (Unavailable, "etcdserver: request timed out, possibly due to connection lost", Verdict::Unclear),
        (Unavailable, "etcdserver: leader changed", Verdict::Unclear),
        (Unavailable, "etcdserver: server stopped", Verdict::Unclear),
        (Unavailable, "error reading a body from connection", Verdict::Unclear),
        (Unavailable, "no leader", Verdict::Unclear),
        (Unknown, "etcdserver: no leader", Verdict::Unclear),
        (Unknown, "raft proposal dropped", Verdict::Unclear),
        (Unavailable, "tcp connect error", Verdict::Unclear),
        (DeadlineExceeded, "context deadline exceeded", Verdict::Unclear),
        (Cancelled, "Timeout expired", Verdict::Unclear),
        (Internal, "h2 protocol error", Verdict::Unclear),
    ] {
        let error = status(code, message);
        assert_eq!(judge(&error), want, "{code:?} {message}");
        let surely = !matches!(Failure::answered("commit", "a:1", &error).of_commit(), CommitError::Unknown(_));
        assert_eq!(surely, !matches!(want, Verdict::Unclear | Verdict::TooLong), "{code:?} {message}");
    }
    assert_eq!(judge(&etcd_client::Error::WatchError("x".into())), Verdict::Unclear);
    let token = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
    assert_eq!(judge(&etcd_client::Error::WatchError(token.into())), Verdict::TokenRefused);
    let silent = Failure::silent("commit metadata", "a:1", Duration::from_secs(5));
    assert!(silent.is_passing());
    assert_eq!(silent.error.to_string(), "commit metadata: etcd at a:1 did not answer within 5000 ms");
    assert!(matches!(silent.of_commit(), CommitError::Unknown(_)));
}

#[test]
fn messages_name_the_endpoint_and_the_root_of_it() {
    let failure = Failure::answered("get metadata /a", "10.0.0.1:2379", &refused_connection());
    let message = failure.error.to_string();
    assert!(message.starts_with("get metadata /a: etcd at 10.0.0.1:2379: "), "{message}");
    assert!(message.ends_with("connection refused"), "{message}");
    assert_eq!(reason(&status(Code::Unavailable, "etcdserver: no leader")), "etcdserver: no leader");
}

fn versioned(revision: u64) -> Versioned {
    Versioned { value: Bytes::from_static(b"v"), version: Version::new(revision), lease: Some(LeaseId::new(3)) }
}

#[test]
fn answers_settle_the_transaction() {
    let transaction = Transaction::new()
        .check(key("/checked"), Expect::Present)
        .put(key("/put"), "x", Expect::Absent)
        .delete(key("/gone"), Expect::Any);
    let done = Answer { revision: 9, succeeded: true, found: vec![Some(versioned(4)), None, None], guarded: false };
    let versions = done.settle(&transaction).unwrap().versions;
    assert_eq!(versions, [Some(Version::new(4)), Some(Version::new(9)), None]);

    let refused = Answer {
        revision: 9,
        succeeded: false,
        found: vec![Some(versioned(4)), Some(versioned(7)), None],
        guarded: false,
    };
    match refused.settle(&transaction) {
        Err(CommitError::Conflict { op: 1, found }) => assert_eq!(found, Some(versioned(7))),
        other => panic!("{other:?}"),
    }
    let absent = Answer { revision: 9, succeeded: false, found: vec![None, None, None], guarded: false };
    assert!(matches!(absent.settle(&transaction), Err(CommitError::Conflict { op: 0, found: None })));
    let guarded = Answer { revision: 9, succeeded: false, found: vec![Some(versioned(4)), None, None], guarded: true };
    assert!(
        matches!(guarded.settle(&transaction), Err(CommitError::NotDone(error)) if error.kind() == ErrorKind::Refused)
    );
    let senseless =
        Answer { revision: 9, succeeded: false, found: vec![Some(versioned(4)), None, None], guarded: false };
    assert!(
        matches!(senseless.settle(&transaction), Err(CommitError::NotDone(error)) if error.kind() == ErrorKind::Damaged)
    );
}
