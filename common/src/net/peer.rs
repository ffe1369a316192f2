use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Whose connection it is: of a peer's address as a [`Listener`](super::Listener) tells it, what all connections from one host have in
/// common. With IPv6 that is the network of 64 bits, of which one host usually has all addresses. A peer that is told otherwise than
/// by an IP address and a port is a host of its own.
pub fn peer_host(peer: &str) -> String {
    // What stands before a server may have added what the peer has shown.
    let address = peer.split(' ').next().unwrap_or(peer);
    let Ok(socket) = address.parse::<SocketAddr>() else { return address.to_owned() };
    match socket.ip().to_canonical() {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => {
            let [a, b, c, d, ..] = host.segments();
            format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_host_have_it_in_common() {
        for (peer, host) in [
            ("10.0.0.7:41234", "10.0.0.7"),
            ("10.0.0.7:41235 (token of writer-1, certificate 01ab)", "10.0.0.7"),
            ("[2001:db8::1]:41234", "2001:db8::/64"),
            ("[2001:db8::ffff:2]:41235", "2001:db8::/64"),
            ("[2001:db8:0:1::1]:41234", "2001:db8:0:1::/64"),
            ("[fe80::1%2]:41234", "fe80::/64"),
            ("[::ffff:10.0.0.7]:41234", "10.0.0.7"),
            ("memory:1", "memory:1"),
            ("memory:1 (token of writer-1)", "memory:1"),
            ("", ""),
        ] {
            assert_eq!(peer_host(peer), host, "{peer}");
        }
    }
}
