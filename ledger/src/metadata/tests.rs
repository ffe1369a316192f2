mod formats;
mod life;

use super::*;

fn members(names: &[&str]) -> Vec<BookieId> {
    names.iter().map(|name| BookieId::new(name).unwrap()).collect()
}

fn open_ledger() -> LedgerMetadata {
    let quorums = Quorums::new(3, 2, 2).unwrap();
    let ensemble = members(&["bk1:3181", "bk2:3181", "bk3:3181"]);
    LedgerMetadata::open(quorums, ensemble, DigestType::Crc32c, Password::empty()).unwrap()
}
