//! The steps of a copy that say which store holds the cluster: what is begun in the target, closed at the source, opened in the target.

use super::{CopyOptions, WHAT, Way, left_for_another};
use crate::admin::{Identity, Marker, State, Work, refused, state, step_failed};
use crate::{Error, ErrorKind, Expect, MetadataStore, Transaction, Version, layout};

/// A marker that stands in the target.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub(super) marker: Marker,
    pub(super) version: Version,
}

/// Step 1, or the take-over of a run that did not end.
pub(super) async fn begin(
    to: &dyn MetadataStore,
    identity: &Identity,
    way: &Way,
    options: CopyOptions,
) -> Result<Begun, Error> {
    let key = layout::layout_key();
    let fresh = Marker {
        work: Work::Copy,
        identity: identity.clone(),
        begun_ms: options.now_ms,
        run: options.run,
        copy: options.run,
        closing: false,
    };
    let (marker, expect, transaction) = match way {
        // With the layout that it was begun with, and as the copy that it was begun as.
        Way::GoOn(old, version) => {
            let marker = Marker { run: options.run, identity: identity.clone(), ..old.clone() };
            (marker, Expect::At(*version), Transaction::new().check(key, Expect::Present))
        }
        Way::Begin | Way::Compare => {
            let put = Transaction::new().put(key, to.layouts()[0].value(), Expect::Absent);
            (fresh, Expect::Absent, put)
        }
    };
    let transaction = transaction.put(layout::maintenance_key(), marker.encode(), expect);
    let transaction = transaction.check(layout::instance_key(), Expect::Absent);
    let version = marker.put_in(WHAT, to, transaction).await?;
    Ok(Begun { marker, version })
}

/// Step 5. `then`: what to do where the target refuses.
pub(super) async fn move_ids(from: &dyn MetadataStore, to: &dyn MetadataStore, then: &str) -> Result<(), Error> {
    let given = from.given_ids().await?;
    match to.skip_ids(&given).await {
        Err(error) if error.kind() == ErrorKind::Refused => Err(refused(format!("{error}. {then}"))),
        other => other,
    }
}

/// Step 4, in the target: what is done to it from here on knows that the source may be left. This is never taken back: another run may
/// be between this and [`leave`].
pub(super) async fn close(to: &dyn MetadataStore, begun: Begun, options: CopyOptions) -> Result<Begun, Error> {
    if begun.marker.closing {
        return Ok(begun);
    }
    let marker = Marker { closing: true, run: options.run, ..begun.marker };
    let transaction = Transaction::new()
        .put(layout::maintenance_key(), marker.encode(), Expect::At(begun.version))
        .check(layout::instance_key(), Expect::Absent)
        .check(layout::layout_key(), Expect::Present);
    let outcome = to.commit(transaction).await;
    match (Marker::read(to).await?, outcome) {
        // Ours, whatever became of the answer.
        (Some((found, version)), _) if found == marker => Ok(Begun { marker, version }),
        (_, Err(error)) => Err(step_failed(WHAT, error)),
        (_, Ok(_)) => Err(refused(format!("{WHAT}: another run took over at once"))),
    }
}

/// Step 4, at the source: from here on no role starts there. One that did would find what the target makes from now on absent, and its
/// bookies would drop it.
pub(super) async fn leave(from: &dyn MetadataStore, closing: &Begun, options: CopyOptions) -> Result<(), Error> {
    let (identity, copy) = (&closing.marker.identity, closing.marker.copy);
    match state(from).await? {
        State::Cluster(found) if found == *identity => {}
        State::Unfinished(Marker { work: Work::Moved, identity: found, copy: of, .. }, _) if found == *identity => {
            return if of == copy { Ok(()) } else { Err(left_for_another(identity)) };
        }
        other => return Err(refused(format!("{WHAT}: the source was changed at once: {}", other.no_cluster()))),
    }
    let identity = identity.clone();
    let marker =
        Marker { work: Work::Moved, identity, begun_ms: options.now_ms, run: options.run, copy, closing: false };
    let transaction = Transaction::new()
        .put(layout::maintenance_key(), marker.encode(), Expect::Absent)
        .delete(layout::instance_key(), Expect::Present)
        .check(layout::layout_key(), Expect::Present);
    marker.put_in(WHAT, from, transaction).await.map(drop)
}

/// Step 6.
pub(super) async fn end(to: &dyn MetadataStore, closing: &Begun) -> Result<(), Error> {
    let identity = &closing.marker.identity;
    let instance = identity.instance.as_str().to_owned().into_bytes();
    let transaction = Transaction::new()
        .delete(layout::maintenance_key(), Expect::At(closing.version))
        .put(layout::instance_key(), instance, Expect::Absent)
        .check(layout::layout_key(), Expect::Present);
    let outcome = to.commit(transaction).await;
    match (state(to).await?, outcome) {
        (State::Cluster(found), _) if found == *identity => Ok(()),
        (_, Err(error)) => Err(step_failed(WHAT, error)),
        (other, Ok(_)) => Err(refused(format!("{WHAT}: the target was changed at once: {}", other.no_cluster()))),
    }
}
