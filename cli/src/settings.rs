//! The configuration: one struct for a standalone node and one for each role, composed of each part's own.

mod roles;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::config::{ByteSize, Loaded, Span};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::Fault;
use crate::args::ConfigArgs;
use crate::profile::{Profile, Takes};

pub use roles::{BookieSettings, GatewaySettings, OffloaderSettings};

/// The configuration of a role.
pub(crate) trait RoleSettings: Default + Serialize + DeserializeOwned {
    /// What it takes of a profile.
    const TAKES: Takes;
}

/// Loads a configuration: defaults, then the profile, the file, the environment, `--set`, and last the command's own flags.
pub(crate) fn load<T: RoleSettings>(args: &ConfigArgs, flags: &[(String, String)]) -> Result<Loaded<T>, Fault> {
    let profile = args.profile.map(layer::<T>).transpose()?;
    let mut all = Vec::new();
    for pair in &args.set {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| Fault::usage(format!("--set {pair}: write it as key=value")))?;
        all.push((key.to_owned(), value.to_owned()));
    }
    all.extend_from_slice(flags);
    ::config::load_from_process(profile, args.config.as_deref(), &all)
        .map_err(|error| Fault::usage(crate::fault::chain(&error)))
}

/// The profile as a layer of the role's configuration; refused where it would say nothing.
pub(crate) fn layer<T: RoleSettings>(profile: Profile) -> Result<::config::Profile<'static>, Fault> {
    let name = profile.name();
    match T::TAKES {
        Takes::AllBut(except) => Ok(::config::Profile { name, text: profile.text(), except }),
        Takes::Nothing(role) => Err(Fault::usage(format!(
            "--profile {name}: {role} has no bookie, and profiles set a bookie's settings; give it to `thermocline bookie` or `standalone`"
        ))),
    }
}

/// Reads the object store's URL.
pub(crate) fn parse_cold(cold: &str) -> Result<Url, Fault> {
    Url::parse(cold).map_err(|error| {
        Fault::usage(format!("cold store {cold}: {error}; write it like file:///path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"))
    })
}

/// Everything a standalone node can be told. The defaults need no file; `config/standalone.toml` shows them all.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where the node keeps its data.
    pub dir: PathBuf,
    /// The address of the gRPC front.
    pub listen: String,
    /// The address of the BookKeeper front, for cold ids. Empty: the host of `listen` and a port of the system's choosing; `off` means
    /// nowhere.
    pub bookkeeper_listen: String,
    /// The address of metrics and health over HTTP; empty means loopback, 1000 above the port of `listen`; `off` means nowhere.
    pub admin: String,
    /// The object store's URL; empty means the folder `cold` in `dir`.
    pub cold: String,
    /// What all roles together may hold in memory for entries, blocks and requests. The client gets what the parts of bookies,
    /// gateway and offloader leave.
    pub memory_max: ByteSize,
    /// The bookies' addresses are this host with a port of the system's choosing.
    pub bookie_host: String,
    /// Who may speak to bookies and to the BookKeeper front.
    pub guard: guard::GuardConfig,
    /// How gateway and offloader introduce themselves to them.
    pub connect: guard::ConnectConfig,
    /// Each bookie.
    pub bookie: bookie::BookieConfig,
    /// The replicating client.
    pub client: client::ClientConfig,
    /// The offloader.
    pub offloader: offloader::OffloaderConfig,
    /// The read gateway.
    pub gateway: read_gateway::GatewayConfig,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("thermocline-data"),
            listen: "127.0.0.1:9600".to_owned(),
            bookkeeper_listen: String::new(),
            admin: String::new(),
            cold: String::new(),
            memory_max: ByteSize::mib(512),
            bookie_host: "127.0.0.1".to_owned(),
            guard: guard::GuardConfig::default(),
            connect: guard::ConnectConfig::default(),
            // Three bookies share one machine's memory with everything else.
            bookie: bookie::BookieConfig {
                write_buffer_bytes: ByteSize::mib(16),
                add_bytes_max: ByteSize::mib(16),
                read_bytes_max: ByteSize::mib(16),
                relay_bytes_max: ByteSize::mib(5),
                ..bookie::BookieConfig::default()
            },
            client: client::ClientConfig::default(),
            offloader: offloader::OffloaderConfig {
                memory_max: ByteSize::mib(80),
                ..offloader::OffloaderConfig::default()
            },
            gateway: read_gateway::GatewayConfig::default(),
        }
    }
}

impl RoleSettings for Settings {
    // Three bookies share one machine's memory with everything else, as the defaults divide it.
    const TAKES: Takes = Takes::AllBut(&["bookie.write_buffer_bytes"]);
}

impl Settings {
    /// Loads the configuration: defaults, then the profile, the file, the environment, `--set`, and last the command's own flags.
    pub fn load(args: &ConfigArgs, flags: &[(String, String)]) -> Result<Loaded<Self>, Fault> {
        load(args, flags)
    }

    /// A node whose ledgers move in seconds and whose journal segments are small enough for that to show on the disk.
    pub fn for_demo(dir: &Path, cold: Option<&Url>, roll_bytes: u64, hot_retention: Duration) -> Self {
        let mut settings = Self {
            dir: dir.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            admin: "off".to_owned(),
            cold: cold.map(Url::to_string).unwrap_or_default(),
            ..Self::default()
        };
        // Space comes back a segment at a time, and the hot ledger begins somewhere within one.
        settings.bookie.segment_bytes = ByteSize::new(roll_bytes / 2);
        settings.bookie.collect_interval = Span::new(Duration::from_millis(500));
        settings.offloader.hot_retention = Span::new(hot_retention);
        settings.offloader.scan_interval = Span::new(Duration::from_millis(500));
        // The last ledger must stay hot: only what the demo asks for is settled.
        settings.offloader.settle_after = Span::new(Duration::from_secs(24 * 3600));
        settings
    }

    /// The object store's URL, with the default filled in.
    pub fn cold_url(&self) -> Result<Url, Fault> {
        if self.cold.is_empty() {
            let folder = self.dir.join("cold");
            let absolute =
                std::path::absolute(&folder).map_err(|error| Fault::usage(format!("{}: {error}", folder.display())))?;
            return Url::from_directory_path(&absolute)
                .map_err(|()| Fault::usage(format!("{}: not a usable path", absolute.display())));
        }
        parse_cold(&self.cold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_says_the_defaults() {
        let name = Path::new("config/standalone.toml");
        let text = include_str!("../../config/standalone.toml");
        let differences = ::config::differences_from_defaults::<Settings>(name, text).unwrap();
        assert!(differences.is_empty(), "{differences:#?}");
    }

    #[test]
    fn the_default_cold_store_is_a_folder_beside_the_data() {
        let settings = Settings { dir: PathBuf::from("/data"), ..Settings::default() };
        assert_eq!(settings.cold_url().unwrap().as_str(), "file:///data/cold/");
        let settings = Settings { cold: "no url".to_owned(), ..settings };
        assert!(settings.cold_url().unwrap_err().to_string().contains("s3://bucket/prefix"));
    }
}
