//! The only source of chance in the model: a splitmix64 generator whose seed is given.

/// A deterministic generator: the same seed gives the same uids, name suffixes and timeouts.
#[derive(Debug, Clone)]
pub struct Prng {
    state: u64,
}

impl Prng {
    /// Starts a generator from a seed.
    pub fn new(seed: u64) -> Prng {
        Prng { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// Returns a version 4 UUID in its usual text form.
    pub fn uid(&mut self) -> String {
        let high = (self.next() & !0xf000) | 0x4000;
        let low = (self.next() & !(0b11 << 62)) | (0b10 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns `length` characters of the alphabet which the API server uses for generated names.
    pub fn suffix(&mut self, length: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..length).map(|_| char::from(ALPHABET[self.below(ALPHABET.len() as u64) as usize])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Prng;

    #[test]
    fn uids_are_version_four_and_repeatable() {
        let uid = Prng::new(7).uid();
        assert_eq!(uid, Prng::new(7).uid());
        assert_ne!(uid, Prng::new(8).uid());
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"), "{uid}");
        assert!("89ab".contains(&uid[19..20]), "{uid}");
    }
}
