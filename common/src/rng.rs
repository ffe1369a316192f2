//! Randomness, passed in as an argument: a seed makes a whole run repeatable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng as _, RngCore, SeedableRng};
use uuid::Uuid;

/// A source of random numbers. Cheap to clone; clones draw from one sequence.
#[derive(Clone, Debug)]
pub struct Rng {
    state: Arc<Mutex<StdRng>>,
}

impl Rng {
    /// Seeded by the operating system: what production uses.
    pub fn from_os() -> Self {
        // The one allowed use: everyone else is given an `Rng`.
        #[allow(clippy::disallowed_methods)]
        let state = StdRng::from_os_rng();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The same sequence for the same seed, always.
    pub fn seeded(seed: u64) -> Self {
        Self { state: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))) }
    }

    /// A new, independent sequence that is decided by this one, for a part that must not disturb its siblings' draws.
    pub fn fork(&self) -> Self {
        Self::seeded(self.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&self) -> u64 {
        self.lock().next_u64()
    }

    /// A number in `0..n`, each equally likely; 0 when `n` is 0.
    pub fn below(&self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.lock().random_range(0..n) }
    }

    /// A number in `0.0..1.0`.
    pub fn fraction(&self) -> f64 {
        self.lock().random()
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.lock().fill_bytes(bytes);
    }

    /// A random (version 4) UUID.
    pub fn uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    fn lock(&self) -> MutexGuard<'_, StdRng> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_others_differ() {
        let draw = |seed| {
            let rng = Rng::seeded(seed);
            (rng.next_u64(), rng.below(1 << 40), rng.uuid(), rng.fork().next_u64())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let rng = Rng::seeded(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[usize::try_from(rng.below(5)).expect("small")] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn uuids_are_version_4_and_differ() {
        let rng = Rng::from_os();
        let (one, two) = (rng.uuid(), rng.uuid());
        assert_ne!(one, two);
        assert_eq!(one.get_version_num(), 4);
        assert_eq!(one.get_variant(), uuid::Variant::RFC4122);
    }
}
