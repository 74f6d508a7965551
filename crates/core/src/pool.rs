//! Warm pools: which request a waiting sandbox can serve, and how many should wait.
//!
//! A pool holds *members*: running, ready sandboxes that have no owner yet. Handing one over changes only settings
//! that can change on a living sandbox, so [`Mold::serves`] decides by the settings that cannot.
//!
//! How many wait follows demand. [`Demand`] remembers arrivals with a half-life; by Little's law the
//! work in flight while one member is made is rate × make time, to which two standard deviations are
//! added, and the recent misses. [`share`] then cuts all pools to the memory they may use.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::limits::{POOL_AGE_MIN_MS, POOL_MAX_COUNT, POOL_MEMBER_MIN_BYTES};
use crate::spec::IsolationLevel;

/// How many members a pool keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolSpec {
    /// Kept ready whatever the demand.
    pub min: u32,
    /// Most that are kept ready.
    pub max: u32,
    /// Members older than this are replaced, milliseconds. One hour when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
}

/// Age at which members are replaced when the pool does not say.
const DEFAULT_AGE_MS: u64 = 3600 * 1000;

impl PoolSpec {
    /// A pool that always keeps `count`.
    #[must_use]
    pub const fn fixed(count: u32) -> Self {
        Self { min: count, max: count, max_age_ms: None }
    }

    /// Age at which members are replaced, milliseconds.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        self.max_age_ms.unwrap_or(DEFAULT_AGE_MS)
    }

    /// Checks the numbers. `field` is the path of the whole in the request.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] naming the field.
    pub fn validate(&self, field: &str) -> Result<()> {
        if self.max > POOL_MAX_COUNT {
            return Err(Error::invalid(
                &format!("{field}.max"),
                format_args!("{} is more than {POOL_MAX_COUNT}", self.max),
            ));
        }
        if self.min > self.max {
            return Err(Error::invalid(
                &format!("{field}.min"),
                format_args!("{} is more than max, which is {}", self.min, self.max),
            ));
        }
        match self.max_age_ms {
            Some(ms) if ms < POOL_AGE_MIN_MS => Err(Error::invalid(
                &format!("{field}.max_age_ms"),
                format_args!("must be at least {POOL_AGE_MIN_MS}"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a pool that asks for this many fits into the memory of all pools.
    /// `member_bytes` is what one member was measured to take; `others_bytes` what the minimum of the
    /// other pools takes.
    ///
    /// # Errors
    /// [`Code::PoolTooLarge`], saying how many would fit.
    pub fn fits(&self, member_bytes: u64, others_bytes: u64, memory_bytes: u64) -> Result<()> {
        let member_bytes = member_bytes.max(POOL_MEMBER_MIN_BYTES);
        let alone = memory_bytes / member_bytes;
        let left = memory_bytes.saturating_sub(others_bytes) / member_bytes;
        let (what, count, room) = if u64::from(self.max) > alone {
            ("max", self.max, alone)
        } else if u64::from(self.min) > left {
            ("min", self.min, left)
        } else {
            return Ok(());
        };
        let mib = |bytes: u64| bytes >> 20;
        Err(Error::new(
            Code::PoolTooLarge,
            format!(
                "{what}: {count} members of {} MiB do not fit into the {} MiB that pools may use",
                mib(member_bytes),
                mib(memory_bytes)
            ),
        )
        .hint(format!("at most {room} fit; start the server with a larger --pool-memory for more")))
    }
}

/// What is fixed once a sandbox has been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mold {
    /// Digest of the image; `None` for `host`.
    pub image: Option<String>,
    /// The isolation level.
    pub isolation: IsolationLevel,
    /// Size of the writable disk.
    pub disk_bytes: u64,
    /// What else went into its making and cannot be added to a living sandbox: the snapshot it came from, the
    /// template version whose start command runs in it.
    pub origin: Option<String>,
    /// How many volumes are mounted. A member has none, and none are mounted later.
    pub volumes: usize,
}

/// Why a member cannot serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// Another image.
    Image,
    /// Another isolation level.
    Isolation,
    /// Another size of disk.
    Disk,
    /// Made from another snapshot, or something runs in it that was not asked for, or is missing.
    Origin,
    /// Volumes are wanted.
    Volumes,
}

impl Mold {
    /// Whether a sandbox of this mold can be handed to who wants `wanted`.
    ///
    /// Not part of a mold, because it is set when a member is handed over: name and host name, labels,
    /// environment, user and working directory, lifetime, limits of CPU, memory and processes, owner,
    /// network policy.
    ///
    /// # Errors
    /// The first thing that differs.
    pub fn serves(&self, wanted: &Self) -> std::result::Result<(), Misfit> {
        if self.isolation != wanted.isolation {
            Err(Misfit::Isolation)
        } else if self.image != wanted.image {
            Err(Misfit::Image)
        } else if self.disk_bytes != wanted.disk_bytes {
            Err(Misfit::Disk)
        } else if self.origin != wanted.origin {
            Err(Misfit::Origin)
        } else if self.volumes != wanted.volumes {
            Err(Misfit::Volumes)
        } else {
            Ok(())
        }
    }
}

/// Demand is forgotten by half in this time, seconds.
const HALF_LIFE_S: f64 = 30.0;
/// Weight of the newest make time in the average.
const MAKE_WEIGHT: f64 = 0.2;
/// Work in flight below this is no reason to keep one ready.
const IDLE_WORK: f64 = 0.05;

/// What was asked of a pool lately. Times are milliseconds since the epoch, passed in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Arrivals, decayed to `at_ms`.
    arrivals: f64,
    /// Arrivals that found nothing, decayed to `at_ms`.
    missed: f64,
    at_ms: u64,
    make_s: f64,
}

impl Demand {
    /// None yet. `make_ms` is a first guess at how long making one takes.
    #[must_use]
    pub fn new(now_ms: u64, make_ms: u64) -> Self {
        Self { arrivals: 0.0, missed: 0.0, at_ms: now_ms, make_s: seconds(make_ms) }
    }

    fn decay(&mut self, now_ms: u64) {
        // A clock that was set back must not make demand grow.
        let passed = seconds(now_ms.saturating_sub(self.at_ms));
        let factor = (-passed / HALF_LIFE_S).exp2();
        self.arrivals *= factor;
        self.missed *= factor;
        self.at_ms = now_ms.max(self.at_ms);
    }

    /// Somebody asked; `hit` when there was a member.
    pub fn arrived(&mut self, now_ms: u64, hit: bool) {
        self.decay(now_ms);
        self.arrivals += 1.0;
        if !hit {
            self.missed += 1.0;
        }
    }

    /// One was made and took this long.
    pub fn made(&mut self, took_ms: u64) {
        self.make_s += (seconds(took_ms) - self.make_s) * MAKE_WEIGHT;
    }

    /// How long making one takes on average, milliseconds.
    #[must_use]
    pub fn make_ms(&self) -> u64 {
        count(self.make_s * 1000.0)
    }

    /// How many should be ready, between the pool's bounds.
    #[must_use]
    pub fn target(&self, spec: &PoolSpec, now_ms: u64) -> u32 {
        let mut now = *self;
        now.decay(now_ms);
        let rate = now.arrivals * std::f64::consts::LN_2 / HALF_LIFE_S;
        let work = rate * now.make_s;
        let flow = if work < IDLE_WORK { 0.0 } else { 2.0f64.mul_add(work.sqrt(), work) };
        // Half a miss is forgotten; what is left stands for a burst deeper than the pool.
        let wanted = count(flow.ceil()) + count(now.missed.round());
        u32::try_from(wanted).unwrap_or(u32::MAX).clamp(spec.min, spec.max.max(spec.min))
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds stay far below 2^52")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn count(number: f64) -> u64 {
    number as u64
}

/// What a pool would like to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Its minimum.
    pub min: u32,
    /// Its target, at least the minimum.
    pub target: u32,
    /// What one member takes, bytes; taken for [`POOL_MEMBER_MIN_BYTES`] when less.
    pub member_bytes: u64,
}

/// How many each pool may have, so that all together stay within `memory_bytes`: first the minimum of
/// every pool, then one more for each in turn.
#[must_use]
pub fn share(asks: &[Ask], memory_bytes: u64) -> Vec<u32> {
    let mut given = vec![0_u32; asks.len()];
    let mut left = memory_bytes;
    for want in [|ask: &Ask| ask.min.min(ask.target), |ask: &Ask| ask.target] {
        let mut growing = true;
        while growing {
            growing = false;
            for (ask, given) in asks.iter().zip(&mut given) {
                let bytes = ask.member_bytes.max(POOL_MEMBER_MIN_BYTES);
                if *given < want(ask) && bytes <= left {
                    *given += 1;
                    left -= bytes;
                    growing = true;
                }
            }
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mold() -> Mold {
        Mold {
            image: None,
            isolation: IsolationLevel::Container,
            disk_bytes: 1 << 30,
            origin: None,
            volumes: 0,
        }
    }

    #[test]
    fn what_is_made_in_must_be_the_same() {
        assert_eq!(mold().serves(&mold()), Ok(()));
        for (wanted, misfit) in [
            (Mold { image: Some("sha256:1".into()), ..mold() }, Misfit::Image),
            (Mold { disk_bytes: 2 << 30, ..mold() }, Misfit::Disk),
            (Mold { origin: Some("web:3".into()), ..mold() }, Misfit::Origin),
            (Mold { volumes: 1, ..mold() }, Misfit::Volumes),
        ] {
            assert_eq!(mold().serves(&wanted), Err(misfit));
            assert_eq!(wanted.serves(&mold()), Err(misfit), "either way");
        }
    }

    #[test]
    fn numbers_at_their_edges() {
        let valid = |min, max| PoolSpec { min, max, max_age_ms: None }.validate("pool");
        assert!(valid(0, 0).is_ok() && valid(POOL_MAX_COUNT, POOL_MAX_COUNT).is_ok());
        assert!(valid(2, 1).unwrap_err().message.starts_with("pool.min: "));
        assert!(valid(0, POOL_MAX_COUNT + 1).unwrap_err().message.starts_with("pool.max: "));
        let young = PoolSpec { max_age_ms: Some(POOL_AGE_MIN_MS - 1), ..PoolSpec::fixed(1) };
        assert!(young.validate("pool").unwrap_err().message.starts_with("pool.max_age_ms: "));
    }

    #[test]
    fn larger_than_memory_is_refused_with_what_would_fit() {
        let memory = 10 * POOL_MEMBER_MIN_BYTES;
        assert!(PoolSpec::fixed(10).fits(0, 0, memory).is_ok());
        let error = PoolSpec::fixed(11).fits(0, 0, memory).unwrap_err();
        assert_eq!(error.code, Code::PoolTooLarge);
        assert!(error.hint.unwrap().contains("at most 10"));
        // A maximum may be shared with others, a minimum may not.
        let spec = PoolSpec { min: 5, max: 10, max_age_ms: None };
        assert!(spec.fits(0, 5 * POOL_MEMBER_MIN_BYTES, memory).is_ok());
        assert_eq!(spec.fits(0, 6 * POOL_MEMBER_MIN_BYTES, memory).unwrap_err().code, Code::PoolTooLarge);
        assert_eq!(spec.fits(2 * POOL_MEMBER_MIN_BYTES, 0, memory).unwrap_err().code, Code::PoolTooLarge);
    }

    #[test]
    fn a_burst_that_found_nothing_is_answered_and_forgotten() {
        let spec = PoolSpec { min: 1, max: 100, max_age_ms: None };
        let mut demand = Demand::new(0, 5);
        assert_eq!(demand.target(&spec, 0), 1);
        for _ in 0..40 {
            demand.arrived(0, false);
        }
        assert!((40..=50).contains(&demand.target(&spec, 0)), "{}", demand.target(&spec, 0));
        assert!((20..=25).contains(&demand.target(&spec, 30_000)));
        assert_eq!(demand.target(&spec, 600_000), 1);
    }

    #[test]
    fn a_steady_stream_keeps_what_arrives_while_one_is_made() {
        let spec = PoolSpec { min: 0, max: 100, max_age_ms: None };
        let mut demand = Demand::new(0, 2000);
        for n in 0..3000 {
            // Ten each second, all served; making one takes two seconds.
            demand.arrived(n * 100, true);
            demand.made(2000);
        }
        let target = demand.target(&spec, 300_000);
        assert!((20..=35).contains(&target), "{target}");
        // The same arrivals need next to no waiting members when each is made in 5 ms.
        let mut quick = demand;
        (0..50).for_each(|_| quick.made(5));
        assert!(quick.target(&spec, 300_000) <= 1);
    }

    proptest! {
        #[test]
        fn targets_stay_in_bounds_and_only_fall_with_time(
            min in 0_u32..50,
            more in 0_u32..100,
            make_ms in 0_u64..100_000,
            arrivals in proptest::collection::vec((0_u64..5000, any::<bool>()), 0..200),
            later in 0_u64..1 << 40,
        ) {
            let spec = PoolSpec { min, max: min + more, max_age_ms: None };
            let mut demand = Demand::new(0, make_ms);
            let mut now = 0;
            for (pause, hit) in arrivals {
                let before = demand.target(&spec, now + pause);
                now += pause;
                demand.arrived(now, hit);
                prop_assert!(demand.target(&spec, now) >= before, "asking never shrinks a pool");
            }
            let target = demand.target(&spec, now);
            prop_assert!((spec.min..=spec.max).contains(&target));
            prop_assert!(demand.target(&spec, now + later) <= target);
            prop_assert_eq!(demand.target(&spec, now + (1 << 40)), spec.min);
        }

        #[test]
        fn shares_fit_and_minimums_come_first(
            asks in proptest::collection::vec((0_u32..40, 0_u32..40, 0_u64..64 << 20), 0..6),
            memory in 0_u64..4 << 30,
        ) {
            let asks: Vec<Ask> = asks
                .into_iter()
                .map(|(min, more, member_bytes)| Ask { min, target: min + more, member_bytes })
                .collect();
            let given = share(&asks, memory);
            let bytes = |ask: &Ask, count: u32| u64::from(count) * ask.member_bytes.max(POOL_MEMBER_MIN_BYTES);
            let total: u64 = asks.iter().zip(&given).map(|(ask, count)| bytes(ask, *count)).sum();
            prop_assert!(total <= memory);
            let minimums: u64 = asks.iter().map(|ask| bytes(ask, ask.min)).sum();
            let wishes: u64 = asks.iter().map(|ask| bytes(ask, ask.target)).sum();
            for (ask, count) in asks.iter().zip(&given) {
                prop_assert!(*count <= ask.target);
                prop_assert!(minimums > memory || *count >= ask.min);
                prop_assert!(wishes > memory || *count == ask.target);
            }
        }
    }
}
