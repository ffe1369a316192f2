//! `bookie`: the figures of a storage node (P1, P2, P4, P7, P11) in one run.

use std::time::Duration;

use crate::catchup::WAYS;
use crate::plan::{Plan, Result};
use crate::row::Row;
use crate::{append, beside, catchup, restart};

/// Measures appends, appends to many ledgers, reads, appends beside late readers, and a restart. Each part has a share of the time, so that
/// a slow one does not leave the others a single repetition.
///
/// # Errors
/// When the bookie cannot be started, fails a request or gives wrong bytes, or the directory cannot be written.
pub fn run(plan: &Plan) -> Result<Vec<Row>> {
    let part = |quick: u64| plan.part(Duration::from_secs(quick));
    let (sizes, ledgers): (&[usize], &[u64]) =
        plan.scale.pick((&[1 << 10, 4 << 10, 64 << 10], &[10, 1000]), (&[1 << 10], &[1000]), (&[1 << 10], &[1000]));
    let ways = plan.scale.pick(&WAYS[..], &WAYS[..3], &WAYS[..3]);
    let mut rows = append::run_with(&part(9), sizes)?;
    rows.extend(append::to_many_ledgers(&part(4), ledgers)?);
    rows.extend(catchup::run_with(&part(6), ways)?);
    rows.extend(beside::rows(&part(6))?);
    rows.extend(restart::rows(&part(5))?);
    Ok(rows)
}
