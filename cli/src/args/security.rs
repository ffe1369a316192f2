//! The arguments of both ends of BookKeeper's wire: who may speak to a role, and how it introduces itself.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

/// Whether a server has TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerTls {
    /// No.
    Off,
    /// Who asks for it gets it.
    Offered,
    /// Nothing is served in clear.
    Required,
}

/// Whether a client's connections have TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClientTls {
    /// No.
    Off,
    /// All of them.
    Required,
}

/// Who may speak to a role over BookKeeper's protocol.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Who may speak to it over BookKeeper's protocol")]
pub struct GuardArgs {
    /// Whether connections have TLS [default: off]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub tls: Option<ServerTls>,
    /// The certificate, with those between it and its authority, in PEM
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Authorities of clients' certificates, in PEM; without it clients need none
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// Who may come in with a token: lines of NAME SHA256; without it nobody needs one
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
}

/// How a role introduces itself to bookies, and to gateways for cold ids.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "How it introduces itself to bookies, and to gateways for cold ids")]
pub struct ConnectArgs {
    /// Whether connections have TLS, and servers a certificate for their host [default: off]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub connect_tls: Option<ClientTls>,
    /// Authorities of servers' certificates, in PEM
    #[arg(long, value_name = "FILE")]
    pub connect_ca: Option<PathBuf>,
    /// The certificate to show, in PEM
    #[arg(long, value_name = "FILE")]
    pub connect_certificate: Option<PathBuf>,
    /// The private key of the certificate to show, in PEM
    #[arg(long, value_name = "FILE")]
    pub connect_key: Option<PathBuf>,
    /// A file with the token to show
    #[arg(long, value_name = "FILE")]
    pub connect_token: Option<PathBuf>,
}

impl GuardArgs {
    /// The settings that the flags give.
    pub(super) fn flags(&self) -> Vec<(String, String)> {
        super::flags([
            ("guard.tls", self.tls.and_then(word)),
            ("guard.certificate", self.certificate.as_deref().map(text)),
            ("guard.key", self.key.as_deref().map(text)),
            ("guard.client_ca", self.client_ca.as_deref().map(text)),
            ("guard.tokens", self.tokens.as_deref().map(text)),
        ])
    }
}

impl ConnectArgs {
    /// The settings that the flags give.
    pub(super) fn flags(&self) -> Vec<(String, String)> {
        super::flags([
            ("connect.tls", self.connect_tls.and_then(word)),
            ("connect.ca", self.connect_ca.as_deref().map(text)),
            ("connect.certificate", self.connect_certificate.as_deref().map(text)),
            ("connect.key", self.connect_key.as_deref().map(text)),
            ("connect.token", self.connect_token.as_deref().map(text)),
        ])
    }
}

fn word(value: impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Cli, Command};

    #[test]
    fn a_bookie_is_told_how_to_introduce_itself() {
        let given =
            ["thermocline", "bookie", "--connect-tls", "required", "--connect-ca", "ca", "--connect-token", "token"];
        let Command::Bookie(args) = Cli::try_parse_from(given).unwrap().command else { panic!("a bookie") };
        let expected = [("connect.tls", "required"), ("connect.ca", "ca"), ("connect.token", "token")];
        assert_eq!(args.flags(), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}
