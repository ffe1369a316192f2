use std::path::{Path, PathBuf};

use proto::{Demands, TlsDemand};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::tokens::TOKEN_PLUGIN;

/// Whether a server has TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardTls {
    /// It has none.
    #[default]
    Off,
    /// Who asks for it gets it; others are served in clear.
    Offered,
    /// Nothing is served in clear.
    Required,
}

/// Who may speak to a role over BookKeeper's protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuardConfig {
    /// Whether connections have TLS: `off`, `offered` to who asks for it, or `required` of all.
    pub tls: GuardTls,
    /// The certificate, with those between it and its authority: a PEM file.
    pub certificate: PathBuf,
    /// The certificate's private key: a PEM file.
    pub key: PathBuf,
    /// Authorities of clients' certificates: a PEM file. Empty: clients need no certificate.
    pub client_ca: PathBuf,
    /// Who may come in with a token: a file of lines `NAME SHA256`. Empty: nobody needs one.
    pub tokens: PathBuf,
}

impl GuardConfig {
    /// Whether nothing is demanded of anybody.
    pub fn is_open(&self) -> bool {
        self.tls == GuardTls::Off && is_unset(&self.tokens)
    }

    /// Checks that the values fit each other. Files are not looked at.
    ///
    /// # Errors
    /// [`Error::Config`] naming the first setting that does not.
    pub fn validate(&self) -> Result<(), Error> {
        let has_tls = self.tls != GuardTls::Off;
        rules(&[
            (!has_tls || !is_unset(&self.certificate), "guard.tls needs guard.certificate, a PEM file"),
            (
                !has_tls || !is_unset(&self.key),
                "guard.tls needs guard.key, the certificate's private key as a PEM file",
            ),
            (has_tls || is_unset(&self.certificate), "guard.certificate is set, but guard.tls is off"),
            (has_tls || is_unset(&self.key), "guard.key is set, but guard.tls is off"),
            (
                self.tls == GuardTls::Required || is_unset(&self.client_ca),
                "guard.client_ca demands certificates of clients, which those without TLS would get around: set guard.tls to required",
            ),
        ])
    }

    pub(crate) fn demands(&self) -> Demands {
        let tls = match self.tls {
            GuardTls::Off => TlsDemand::Off,
            GuardTls::Offered => TlsDemand::Offered,
            GuardTls::Required => TlsDemand::Required,
        };
        Demands { tls, plugin: (!is_unset(&self.tokens)).then(|| TOKEN_PLUGIN.to_owned()) }
    }
}

/// Whether a client's connections have TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectTls {
    /// They have none.
    #[default]
    Off,
    /// All have it; a server without it is not spoken to.
    Required,
}

/// How a role introduces itself to bookies, and to gateways for cold ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectConfig {
    /// Whether connections have TLS: `off`, or `required`, which also checks that the server has a certificate for the host it is
    /// registered with.
    pub tls: ConnectTls,
    /// Authorities of servers' certificates: a PEM file.
    pub ca: PathBuf,
    /// The certificate to show, with those between it and its authority: a PEM file. Empty: none.
    pub certificate: PathBuf,
    /// The certificate's private key: a PEM file.
    pub key: PathBuf,
    /// A file with the token to show. Empty: none.
    pub token: PathBuf,
}

impl ConnectConfig {
    /// Whether connections are made as they are, without a word.
    pub fn is_plain(&self) -> bool {
        self.tls == ConnectTls::Off && is_unset(&self.token)
    }

    /// Checks that the values fit each other. Files are not looked at.
    ///
    /// # Errors
    /// [`Error::Config`] naming the first setting that does not.
    pub fn validate(&self) -> Result<(), Error> {
        let has_tls = self.tls != ConnectTls::Off;
        rules(&[
            (!has_tls || !is_unset(&self.ca), "connect.tls needs connect.ca, the authorities of servers' certificates"),
            (has_tls || is_unset(&self.ca), "connect.ca is set, but connect.tls is off"),
            (has_tls || is_unset(&self.certificate), "connect.certificate is set, but connect.tls is off"),
            (
                is_unset(&self.certificate) == is_unset(&self.key),
                "connect.certificate and connect.key belong together: set both or none",
            ),
        ])
    }
}

fn rules(rules: &[(bool, &str)]) -> Result<(), Error> {
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, rule)) => Err(Error::Config((*rule).to_owned())),
        None => Ok(()),
    }
}

pub(crate) fn is_unset(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        assert!(GuardConfig::default().validate().is_ok() && GuardConfig::default().is_open());
        assert!(ConnectConfig::default().validate().is_ok() && ConnectConfig::default().is_plain());
        let path = || PathBuf::from("file");
        let pair = GuardConfig { certificate: path(), key: path(), tls: GuardTls::Required, ..GuardConfig::default() };
        assert!(pair.validate().is_ok() && !pair.is_open());
        let tokens = GuardConfig { tokens: path(), ..GuardConfig::default() };
        assert!(tokens.validate().is_ok() && !tokens.is_open());
        for (config, named) in [
            (GuardConfig { certificate: PathBuf::new(), ..pair.clone() }, "guard.certificate"),
            (GuardConfig { key: PathBuf::new(), ..pair.clone() }, "guard.key"),
            (GuardConfig { tls: GuardTls::Off, ..pair.clone() }, "guard.certificate"),
            (GuardConfig { tls: GuardTls::Offered, client_ca: path(), ..pair.clone() }, "guard.client_ca"),
        ] {
            let told = config.validate().map_err(|error| error.to_string());
            assert!(told.as_ref().is_err_and(|told| told.contains(named)), "{told:?}");
        }
        let tls = ConnectConfig { tls: ConnectTls::Required, ca: path(), ..ConnectConfig::default() };
        assert!(tls.validate().is_ok() && !tls.is_plain());
        for (config, named) in [
            (ConnectConfig { ca: PathBuf::new(), ..tls.clone() }, "connect.ca"),
            (ConnectConfig { tls: ConnectTls::Off, ..tls.clone() }, "connect.ca"),
            (ConnectConfig { certificate: path(), ..tls.clone() }, "connect.key"),
            (ConnectConfig { key: path(), ..tls }, "connect.certificate"),
        ] {
            let told = config.validate().map_err(|error| error.to_string());
            assert!(told.as_ref().is_err_and(|told| told.contains(named)), "{told:?}");
        }
    }
}
