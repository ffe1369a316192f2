//! `thermocline doctor`: what this machine, its disk and the stores it would use can do, and what that means.
//!
//! [`facts`] is what can be known, `machine`, `disk` and `stores` find it out, and `findings` and `advice` turn it into sentences:
//! numbers in, findings out. What is written is removed again; how much and for how long is bounded before anything begins.

mod advice;
mod disk;
mod facts;
mod findings;
mod machine;
mod report;
mod stores;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::config::Loaded;
use common::clock::Clock;
use common::rng::Rng;

use crate::args::DoctorArgs;
use crate::{Fault, Settings};
use facts::{Asked, Facts};

/// What is allowed beyond the time that was asked for, before the disk or a store counts as not answering.
const GRACE: Duration = Duration::from_secs(10);

/// Measures, prints, and fails only when something keeps a role from running.
///
/// # Errors
/// Exit code 1 when a role could not run here.
pub(crate) async fn run(args: DoctorArgs) -> Result<(), Fault> {
    let settings = Settings::load(&args.config, &[])?;
    let dir = args.dir.clone().unwrap_or_else(|| settings.value.dir.clone());
    let facts = tokio::select! {
        facts = measure(&args, &settings, &dir) => facts,
        // What was written goes with the future that is dropped here.
        _ = tokio::signal::ctrl_c() => return Err(Fault::failed("interrupted; what was written to the disk is removed")),
    };
    let findings = findings::diagnose(&facts);
    report::print(&facts, &findings, args.output);
    match findings.iter().filter(|finding| finding.severity == findings::Severity::Blocks).count() {
        0 => Ok(()),
        1 => Err(Fault::failed("one of these keeps a role from running")),
        many => Err(Fault::failed(format!("{many} of these keep a role from running"))),
    }
}

async fn measure(args: &DoctorArgs, settings: &Loaded<Settings>, dir: &Path) -> Facts {
    let (clock, rng) = (Clock::system(), Rng::from_os());
    let watch = machine::ClockWatch::start(&clock);
    let seconds = Duration::from_secs(args.seconds);
    let stores = u32::from(args.metadata.is_some()) + u32::from(args.cold.is_some());
    // The disk gets most of the time, each store a sixth.
    let share = seconds / 6;
    let place = existing(dir);
    let disk =
        within(seconds + GRACE, "the disk", Box::pin(disk::measure(&place, seconds - share * stores, &clock))).await;
    let metadata = match &args.metadata {
        Some(uri) => Some(
            within(share + GRACE, "the metadata store", Box::pin(stores::metadata(uri, share, &clock, &rng))).await,
        ),
        None => None,
    };
    let cold = match &args.cold {
        Some(url) => {
            Some(within(share + GRACE, "the object store", Box::pin(stores::cold(url, share, &clock, &rng))).await)
        }
        None => None,
    };
    Facts { asked: Asked::of(settings, dir), machine: machine::look(&place, watch.jump(&clock)), disk, metadata, cold }
}

/// The directory, or what exists of the way to it: the doctor makes no directory of the node's.
fn existing(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

async fn within<T>(limit: Duration, who: &str, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("{who} did not answer within {} s", limit.as_secs()));
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}
