//! Numbers that look random and are the same for the same seed. Nothing for secrets.

/// Draws number after number (`SplitMix64`): every bit of one depends on every bit of the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw(u64);

impl Draw {
    /// The numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`; 0 where there is none.
    pub fn below(&mut self, count: usize) -> usize {
        // It fits: it is less than `count`.
        usize::try_from(self.number() % count.max(1) as u64).unwrap_or_default()
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_its_numbers() {
        // As in the authors' reference implementation.
        let mut draw = Draw::new(1_234_567);
        let drawn = [(); 3].map(|()| draw.number());
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!((draw.below(1), draw.below(0), draw.pick::<u8>(&[])), (0, 0, None));
    }
}
