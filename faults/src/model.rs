//! How long an object store takes: a seeded model of the waits that readers of a public cloud see.
//!
//! The wait for the first byte is lognormal, with a few stragglers from a second, slower lognormal; after it the bytes of one
//! connection come at a fixed rate. The model is pure: it says how long, the caller waits.

use std::time::Duration;

use common::rng::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, LogNormal};

/// How long a store takes to answer a read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoreModel {
    /// The wait of nearly all requests; `None` answers at once.
    pub usual: Option<Wait>,
    /// The wait of the few.
    pub straggler: Option<Wait>,
    /// The part of requests that are stragglers, in `0.0..=1.0`.
    pub straggler_share: f64,
    /// What one connection carries a second; `None` is as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

/// A lognormal wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wait {
    /// Half of the waits are shorter.
    pub median: Duration,
    /// The standard deviation of the wait's natural logarithm; 0 makes every wait the median.
    pub sigma: f64,
}

impl Wait {
    fn draw(&self, rng: &mut SmallRng) -> Duration {
        let median = self.median.as_secs_f64();
        // Only a sigma that is no number or negative is refused; such a wait is its median.
        let factor = LogNormal::new(0.0, self.sigma).map_or(1.0, |spread| spread.sample(rng));
        Duration::try_from_secs_f64(median * factor).unwrap_or(self.median)
    }
}

impl StoreModel {
    /// A store that answers at once.
    pub const fn none() -> Self {
        Self { usual: None, straggler: None, straggler_share: 0.0, bytes_per_second: None }
    }

    /// A public cloud's object store in the same region: first byte after lognormal(30 ms, 0.55), one request in a hundred after
    /// lognormal(400 ms, 0.8), and 58 MiB a second on each connection.
    pub const fn cloud() -> Self {
        Self {
            usual: Some(Wait { median: Duration::from_millis(30), sigma: 0.55 }),
            straggler: Some(Wait { median: Duration::from_millis(400), sigma: 0.8 }),
            straggler_share: 0.01,
            bytes_per_second: Some(58 << 20),
        }
    }

    /// Whether this model never waits.
    pub fn is_none(&self) -> bool {
        self.usual.is_none() && self.straggler.is_none() && self.bytes_per_second.is_none()
    }

    /// The wait for the first byte of one request. Draws once from `rng`, so a seed repeats the sequence.
    pub fn first_byte(&self, rng: &Rng) -> Duration {
        let mut draws = SmallRng::seed_from_u64(rng.next_u64());
        let straggles = rand::Rng::random::<f64>(&mut draws) < self.straggler_share;
        let wait = if straggles { self.straggler.or(self.usual) } else { self.usual };
        wait.map_or(Duration::ZERO, |wait| wait.draw(&mut draws))
    }

    /// How long `bytes` take on one connection once they flow.
    pub fn transfer(&self, bytes: u64) -> Duration {
        self.bytes_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64))
    }
}

impl Default for StoreModel {
    fn default() -> Self {
        Self::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(model: &StoreModel, seed: u64, count: usize) -> Vec<f64> {
        let rng = Rng::seeded(seed);
        let mut waits: Vec<f64> = (0..count).map(|_| model.first_byte(&rng).as_secs_f64() * 1e3).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }

    /// The value that a lognormal of `median` and `sigma` is below with the probability whose standard score is `z`.
    fn quantile(median: f64, sigma: f64, z: f64) -> f64 {
        median * (sigma * z).exp()
    }

    #[test]
    fn quantiles_are_those_of_the_model_for_any_seed() {
        for seed in 0..5 {
            let count = 100_000;
            let waits = sorted(&StoreModel { straggler_share: 0.0, ..StoreModel::cloud() }, seed, count);
            for (share, z) in [(0.05, -1.6449), (0.25, -0.6745), (0.50, 0.0), (0.75, 0.6745), (0.95, 1.6449)] {
                let (found, expected) = (waits[(count as f64 * share) as usize], quantile(30.0, 0.55, z));
                assert!(
                    (found / expected - 1.0).abs() < 0.03,
                    "seed {seed}: {share}: {found} ms, expected {expected} ms"
                );
            }
            // With stragglers the middle hardly moves and the far end is theirs.
            let waits = sorted(&StoreModel::cloud(), seed, count);
            assert!((waits[count / 2] / 30.0 - 1.0).abs() < 0.03, "seed {seed}: {}", waits[count / 2]);
            let far = waits.iter().filter(|wait| **wait > 400.0).count();
            assert!(
                (400..620).contains(&far),
                "seed {seed}: half of one in a hundred is slower than 400 ms, found {far}"
            );
        }
    }

    #[test]
    fn stragglers_alone_have_their_own_quantiles() {
        let waits = sorted(&StoreModel { straggler_share: 1.0, ..StoreModel::cloud() }, 9, 50_000);
        assert!((waits[25_000] / 400.0 - 1.0).abs() < 0.03, "{}", waits[25_000]);
        assert!((waits[47_500] / quantile(400.0, 0.8, 1.6449) - 1.0).abs() < 0.05, "{}", waits[47_500]);
    }

    #[test]
    fn a_seed_repeats_and_no_model_never_waits() {
        let draw = |seed| sorted(&StoreModel::cloud(), seed, 50);
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        assert_eq!(sorted(&StoreModel::none(), 1, 100), [0.0; 100]);
        assert!(StoreModel::none().is_none() && !StoreModel::cloud().is_none());
        assert_eq!(StoreModel::none().transfer(u64::MAX), Duration::ZERO);
        assert_eq!(StoreModel::cloud().transfer(116 << 20), Duration::from_secs(2));
        let broken = Wait { median: Duration::from_millis(5), sigma: f64::NAN };
        let model = StoreModel { usual: Some(broken), ..StoreModel::none() };
        assert_eq!(model.first_byte(&Rng::seeded(1)), Duration::from_millis(5));
    }
}
