//! The only source of chance in the core; its seed is an input.

use std::time::Duration;

/// A small, fast generator (xorshift64*), good enough for jitter and for schedules, not for secrets.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// A generator whose whole future follows from `seed`.
    pub fn new(seed: u64) -> Self {
        // The state must not be zero; mixing also keeps neighbouring seeds apart.
        let mixed = (seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self(if mixed == 0 { 1 } else { mixed })
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A duration in `[low, high]`, to the microsecond; `low` when the range is empty.
    pub fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_micros()).unwrap_or(u64::MAX);
        low + Duration::from_micros(self.below(span.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_future() {
        let draw = |seed| {
            let mut prng = Prng::new(seed);
            (0..8).map(|_| prng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn between_keeps_its_bounds() {
        let mut prng = Prng::new(1);
        let (low, high) = (Duration::from_secs(2), Duration::from_secs(3));
        for _ in 0..1000 {
            let drawn = prng.between(low, high);
            assert!(low <= drawn && drawn <= high, "{drawn:?}");
        }
        assert_eq!(prng.between(high, low), high);
    }
}
