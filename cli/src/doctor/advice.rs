//! Which profile suits the disk: facts in, a choice and its reason out.
//!
//! What cannot be measured is never assumed: whether the disk outlives its machine, and where the other copies are, only the operator
//! knows. So `ephemeral` is described and never chosen.

use std::time::Duration;

use super::facts::{Disk, Facts, FileSystem};
use super::findings::time;
use crate::profile::Profile;

/// A disk syncs this fast when it need not write through: it keeps its cache in a power cut, or says so.
const FAST_SYNC: Duration = Duration::from_micros(200);
/// A sync this slow waits for something that turns, or for a queue of others.
const SLOW_SYNC: Duration = Duration::from_millis(5);
/// Overlapping pays from here on; below, it may be chance.
const PAYS: f64 = 1.5;

/// What was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Advice {
    /// `None`: the defaults.
    pub(super) profile: Option<Profile>,
    /// Why, as sentences.
    pub(super) why: String,
}

/// The profile for a bookie on this disk; `None` when the disk was not measured.
pub(super) fn advise(facts: &Facts) -> Option<Advice> {
    let disk = facts.disk.as_ref().ok()?;
    let unfit = match facts.machine.file_system {
        FileSystem::Memory => Some("in memory"),
        FileSystem::Network(_) => Some("on another machine"),
        FileSystem::Overlay => Some("in a container's overlay"),
        FileSystem::Local(_) | FileSystem::Other(_) => None,
    };
    if let Some(place) = unfit {
        return Some(Advice { profile: None, why: format!("No profile is made for a directory {place}.") });
    }
    let (profile, why) = of_disk(facts.machine.rotates, disk);
    let choice = match profile {
        Some(profile) => format!("Profile: --profile {}. {why}", profile.name()),
        None => format!("Profile: none, the defaults. {why}"),
    };
    Some(Advice {
        profile,
        why: format!(
            "{choice} If this disk is gone with its machine (an instance store) and the other copies of every ledger are on machines that do not end with it, --profile ephemeral is the choice, since a sync then protects nothing; that cannot be measured, and is for you to say."
        ),
    })
}

fn of_disk(rotates: Option<bool>, disk: &Disk) -> (Option<Profile>, String) {
    let (sync, gain) = (disk.sync_4k.p50, disk.overlap_gain());
    let pays = gain >= PAYS;
    let sync_takes = format!("a sync of 4 KiB takes {}", time(sync));
    let overlap = format!("{} synced writes at a time carry {gain:.1} times as much as one", Disk::AT_ONCE);
    match rotates {
        _ if sync > SLOW_SYNC => (
            None,
            format!(
                "Here {sync_takes}: each one waits for the disk itself, and no profile helps that. hdd-raid is for rotating disks whose controller has a cache that survives a power cut."
            ),
        ),
        Some(true) if !pays => (
            Some(Profile::HddRaid),
            format!(
                "The disk says that it turns, {sync_takes}, so a cache answers for it, and {overlap}: one stream of larger groups and few reads beside it suit it. Make sure that this cache survives a power cut."
            ),
        ),
        Some(true) => (
            Some(Profile::CloudVolume),
            format!(
                "The disk says that it turns, as virtual disks often do, but {overlap}, as on no disk that turns; {sync_takes}. It is taken for a volume of a cloud, of the bookie's own."
            ),
        ),
        _ if sync <= FAST_SYNC => (
            Some(Profile::LocalNvme),
            format!(
                "Here {sync_takes}, as on an NVMe disk with protection against power loss, which takes many reads at a time. Make sure that it has that."
            ),
        ),
        _ if pays => (
            Some(Profile::CloudVolume),
            format!(
                "Here {sync_takes} and {overlap}, as on a volume of a cloud. The profile takes it for one of the bookie's own."
            ),
        ),
        _ => (
            None,
            format!(
                "Here {sync_takes} and {overlap}: neither a volume of a cloud nor a disk with protected cache is like that."
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::Rate;
    use super::super::findings::tests::{good, latency};
    use super::*;

    fn facts(rotates: Option<bool>, sync_us: u64, gain: u64) -> Facts {
        let mut facts = good();
        facts.machine.rotates = rotates;
        let disk = facts.disk.as_mut().unwrap();
        disk.sync_4k = latency(sync_us, sync_us * 3);
        let second = Duration::from_secs(1);
        disk.alone = Rate { bytes: 10 << 20, elapsed: second };
        disk.together = Rate { bytes: gain << 20, elapsed: second };
        facts
    }

    #[test]
    fn each_kind_of_disk_has_its_profile() {
        use Profile::{CloudVolume, HddRaid, LocalNvme};
        // Whether it turns, microseconds of a sync, tenths of the gain by overlapping.
        for (rotates, sync_us, gain, expected) in [
            (Some(false), 900, 30, Some(CloudVolume)),
            (None, 900, 30, Some(CloudVolume)),
            (Some(true), 900, 30, Some(CloudVolume)),
            (Some(true), 80, 30, Some(CloudVolume)),
            (Some(false), 80, 30, Some(LocalNvme)),
            (Some(false), 80, 10, Some(LocalNvme)),
            (None, 80, 10, Some(LocalNvme)),
            (Some(true), 150, 11, Some(HddRaid)),
            (Some(true), 900, 10, Some(HddRaid)),
            (Some(true), 9_000, 10, None),
            (Some(false), 9_000, 30, None),
            (Some(false), 900, 10, None),
            (None, 900, 14, None),
        ] {
            let advice = advise(&facts(rotates, sync_us, gain)).unwrap();
            assert_eq!(advice.profile, expected, "{rotates:?} {sync_us} µs {gain}: {}", advice.why);
            let named = expected.map_or_else(|| "the defaults".to_owned(), |profile| profile.name().to_owned());
            assert!(advice.why.starts_with("Profile: ") && advice.why.contains(&named), "{}", advice.why);
            assert!(advice.why.contains("a sync of 4 KiB takes"), "the reason has a number: {}", advice.why);
            assert!(advice.why.contains("--profile ephemeral is the choice"), "{}", advice.why);
        }
    }

    #[test]
    fn no_place_that_loses_data_has_a_profile() {
        for kind in [FileSystem::Memory, FileSystem::Network("NFS"), FileSystem::Overlay] {
            let mut facts = facts(Some(false), 80, 30);
            facts.machine.file_system = kind;
            let advice = advise(&facts).unwrap();
            assert_eq!(advice.profile, None);
            assert!(!advice.why.contains("ephemeral"), "{}", advice.why);
        }
    }

    #[test]
    fn what_was_not_measured_is_not_advised_on() {
        let mut facts = good();
        facts.disk = Err("permission denied".to_owned());
        assert_eq!(advise(&facts), None);
    }
}
