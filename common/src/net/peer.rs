use std::net::IpAddr;

/// Whose connection it is: of a peer's address as a [`Listener`](super::Listener) tells it, the part that all connections from one
/// host have in common. A peer that is told otherwise than by an IP address and a port is a host of its own.
pub fn peer_host(peer: &str) -> &str {
    // What stands before a server may have added what the peer has shown.
    let address = peer.split(' ').next().unwrap_or(peer);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.parse::<IpAddr>().is_ok() { host } else { address }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_host_have_it_in_common() {
        for (peer, host) in [
            ("10.0.0.7:41234", "10.0.0.7"),
            ("10.0.0.7:41235 (token of writer-1, certificate 01ab)", "10.0.0.7"),
            ("[2001:db8::1]:41234", "2001:db8::1"),
            ("memory:1", "memory:1"),
            ("memory:1 (token of writer-1)", "memory:1"),
            ("", ""),
        ] {
            assert_eq!(peer_host(peer), host, "{peer}");
        }
    }
}
