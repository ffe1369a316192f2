//! Bytes over one loopback connection, from one plain thread to another: what any server of this machine can at most send to one reader.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::plan::{Error, Result};
use crate::timing::{join, now, thread};

/// The size of each write and read.
const CHUNK_BYTES: usize = 256 << 10;

/// Sends `bytes` from one thread to another and tells how long that took.
pub(crate) fn send_over_loopback(bytes: u64) -> Result<Duration> {
    const PLACE: &str = "send bytes over loopback";
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::at(PLACE))?;
    let address = listener.local_addr().map_err(Error::at(PLACE))?;
    let outgoing = TcpStream::connect(address).map_err(Error::at(PLACE))?;
    let (mut incoming, _) = listener.accept().map_err(Error::at(PLACE))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    common::rng::Rng::seeded(2).fill(&mut chunk);
    let begun = now();
    let sender = thread("load-raw-send", move || -> std::io::Result<()> {
        let (mut outgoing, mut left) = (outgoing, bytes);
        while left > 0 {
            let part = left.min(CHUNK_BYTES as u64);
            outgoing.write_all(&chunk[..part as usize])?;
            left -= part;
        }
        Ok(())
    })?;
    let receiver = thread("load-raw-receive", move || -> std::io::Result<u64> {
        let (mut buffer, mut got) = (vec![0; CHUNK_BYTES], 0);
        loop {
            match incoming.read(&mut buffer)? {
                0 => return Ok(got),
                count => got += count as u64,
            }
        }
    })?;
    let (sent, got) = (join(sender), join(receiver));
    let elapsed = begun.elapsed();
    sent.map_err(Error::at(PLACE))?;
    match got.map_err(Error::at(PLACE))? {
        got if got == bytes => Ok(elapsed),
        got => Err(Error::new(PLACE, format!("{got} of {bytes} bytes arrived"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives() {
        assert!(send_over_loopback(3 * CHUNK_BYTES as u64 + 17).expect("loopback works") > Duration::ZERO);
    }
}
