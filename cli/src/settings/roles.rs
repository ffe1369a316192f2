//! The configuration of each role that runs as a process of its own. `config/<role>.toml` shows every key.

use std::path::PathBuf;

use ::config::ByteSize;
use serde::{Deserialize, Serialize};

use super::RoleSettings;
use crate::profile::Takes;

/// Where a role looks for the cluster's metadata unless told otherwise: etcd on this machine.
const METADATA: &str = "etcd://127.0.0.1:2379";

/// Everything `thermocline bookie` can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BookieSettings {
    /// The bookie's id, for life. Empty: the one its directory has; for a new directory the address it registers.
    pub id: String,
    /// Where the bookie keeps its data.
    pub dir: PathBuf,
    /// The cluster's metadata.
    pub metadata: String,
    /// The address it listens on.
    pub listen: String,
    /// The address of metrics and health over HTTP; empty means loopback, 1000 above the port of `listen`; `off` means nowhere.
    pub admin: String,
    /// The address it registers, where clients reach it. Empty: the one it listens on.
    pub advertise: String,
    /// Who may speak to the bookie.
    pub guard: guard::GuardConfig,
    /// How it speaks to members of ledgers that moved away.
    pub connect: guard::ConnectConfig,
    /// The bookie.
    pub bookie: bookie::BookieConfig,
}

impl Default for BookieSettings {
    fn default() -> Self {
        Self {
            id: String::new(),
            dir: PathBuf::from("thermocline-bookie"),
            metadata: METADATA.to_owned(),
            listen: "127.0.0.1:3181".to_owned(),
            admin: String::new(),
            advertise: String::new(),
            guard: guard::GuardConfig::default(),
            connect: guard::ConnectConfig::default(),
            bookie: bookie::BookieConfig::default(),
        }
    }
}

impl RoleSettings for BookieSettings {
    const TAKES: Takes = Takes::AllBut(&[]);
}

/// Everything `thermocline gateway` can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// The name it registers. Empty: host and port of the address it registers.
    pub id: String,
    /// The cluster's metadata.
    pub metadata: String,
    /// The object store's URL.
    pub cold: String,
    /// The address of the gRPC front.
    pub listen: String,
    /// The address of metrics and health over HTTP; empty means loopback, 1000 above the port of `listen`; `off` means nowhere.
    pub admin: String,
    /// The address it registers, where offloaders reach it. Empty: the one it listens on.
    pub advertise: String,
    /// The address of the BookKeeper front, for cold ids. Empty: the host of `listen` and a port of the system's choosing; `off` means
    /// nowhere.
    pub bookkeeper_listen: String,
    /// The address of the BookKeeper front that cold ids are registered at. Empty: the host of the address that the gateway registers,
    /// with the port it listens on.
    pub bookkeeper_advertise: String,
    /// What the process may hold in memory for entries, blocks and requests. The client gets what the gateway's parts leave.
    pub memory_max: ByteSize,
    /// Who may speak to the BookKeeper front.
    pub guard: guard::GuardConfig,
    /// How the gateway introduces itself to bookies.
    pub connect: guard::ConnectConfig,
    /// The replicating client.
    pub client: client::ClientConfig,
    /// The read gateway.
    pub gateway: read_gateway::GatewayConfig,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            id: String::new(),
            metadata: METADATA.to_owned(),
            cold: String::new(),
            listen: "127.0.0.1:9600".to_owned(),
            admin: String::new(),
            advertise: String::new(),
            bookkeeper_listen: String::new(),
            bookkeeper_advertise: String::new(),
            memory_max: ByteSize::mib(256),
            guard: guard::GuardConfig::default(),
            connect: guard::ConnectConfig::default(),
            client: client::ClientConfig::default(),
            gateway: read_gateway::GatewayConfig::default(),
        }
    }
}

impl RoleSettings for GatewaySettings {
    const TAKES: Takes = Takes::Nothing("a gateway");
}

/// Everything `thermocline offloader` can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OffloaderSettings {
    /// The cluster's metadata.
    pub metadata: String,
    /// The object store's URL.
    pub cold: String,
    /// The address of the gRPC front, which takes orders and shows the cluster's status.
    pub listen: String,
    /// The address of metrics and health over HTTP; empty means loopback, 1000 above the port of `listen`; `off` means nowhere.
    pub admin: String,
    /// What the process may hold in memory for entries and requests. The client gets what the offloader leaves.
    pub memory_max: ByteSize,
    /// How the offloader introduces itself to bookies, and to gateways for cold ids.
    pub connect: guard::ConnectConfig,
    /// The replicating client.
    pub client: client::ClientConfig,
    /// The offloader.
    pub offloader: offloader::OffloaderConfig,
}

impl Default for OffloaderSettings {
    fn default() -> Self {
        Self {
            metadata: METADATA.to_owned(),
            cold: String::new(),
            listen: "127.0.0.1:9610".to_owned(),
            admin: String::new(),
            memory_max: ByteSize::mib(192),
            connect: guard::ConnectConfig::default(),
            client: client::ClientConfig::default(),
            offloader: offloader::OffloaderConfig::default(),
        }
    }
}

impl RoleSettings for OffloaderSettings {
    const TAKES: Takes = Takes::Nothing("an offloader");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_shipped_files_say_the_defaults() {
        let of = |name: &str, differences: Result<Vec<String>, ::config::ConfigError>| {
            let differences = differences.unwrap();
            assert!(differences.is_empty(), "config/{name}.toml: {differences:#?}");
        };
        let name = Path::new("config/bookie.toml");
        let text = include_str!("../../../config/bookie.toml");
        of("bookie", ::config::differences_from_defaults::<BookieSettings>(name, text));
        let name = Path::new("config/gateway.toml");
        let text = include_str!("../../../config/gateway.toml");
        of("gateway", ::config::differences_from_defaults::<GatewaySettings>(name, text));
        let name = Path::new("config/offloader.toml");
        let text = include_str!("../../../config/offloader.toml");
        of("offloader", ::config::differences_from_defaults::<OffloaderSettings>(name, text));
    }
}
