//! Profiles: choices of a bookie's settings for kinds of disks, shipped in `config/profiles` and compiled in.

use clap::ValueEnum;

/// What a bookie's disk is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A volume of the cloud (EBS, Persistent Disk, Azure disk) of the bookie's own
    CloudVolume,
    /// An NVMe disk of the machine, with protection against power loss
    LocalNvme,
    /// A disk that is gone with its machine: does not sync, and needs replicas on other machines
    Ephemeral,
    /// Rotating disks behind a controller with a protected cache
    HddRaid,
}

impl Profile {
    /// As on the command line, and the name of its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CloudVolume => "cloud-volume",
            Self::LocalNvme => "local-nvme",
            Self::Ephemeral => "ephemeral",
            Self::HddRaid => "hdd-raid",
        }
    }

    /// What it sets, as TOML, each key with its reason.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::CloudVolume => include_str!("../../config/profiles/cloud-volume.toml"),
            Self::LocalNvme => include_str!("../../config/profiles/local-nvme.toml"),
            Self::Ephemeral => include_str!("../../config/profiles/ephemeral.toml"),
            Self::HddRaid => include_str!("../../config/profiles/hdd-raid.toml"),
        }
    }
}

/// What a role takes of a profile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Takes {
    /// All it says but these keys.
    AllBut(&'static [&'static str]),
    /// Nothing: the role, with its article, has no bookie.
    Nothing(&'static str),
}

#[cfg(test)]
mod tests;
