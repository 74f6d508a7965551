//! The names that our resolver has given a sandbox for each address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use atoll_core::policy::HostName;
use tokio::time::Instant;

use crate::limits::{NAME_KEPT, NAMES_MAX_COUNT, NAMES_OF_ADDRESS_MAX_COUNT};

/// Answers given to one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Until when each pair counts.
    until: HashMap<(IpAddr, HostName), Instant>,
    /// The same by address.
    by_address: BTreeMap<IpAddr, Vec<HostName>>,
}

impl Names {
    /// Remembers an answer.
    pub(crate) fn learn(&mut self, name: &HostName, addresses: &[IpAddr], ttl: Duration) {
        let until = Instant::now() + ttl.max(NAME_KEPT);
        for address in addresses {
            if self.until.insert((*address, name.clone()), until).is_none() {
                self.by_address.entry(*address).or_default().push(name.clone());
                self.crowd_out(*address);
            }
        }
        if self.until.len() > NAMES_MAX_COUNT {
            self.forget_oldest();
        }
    }

    /// Whether this name was said to have this address.
    pub(crate) fn is(&self, name: &HostName, address: IpAddr) -> bool {
        // The pair is small next to the cost of a connection; borrowing it would need a second map.
        self.until.get(&(address, name.clone())).is_some_and(|until| *until > Instant::now())
    }

    /// Every name that was said to have this address.
    pub(crate) fn of(&self, address: IpAddr) -> Vec<HostName> {
        let names = self.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        names.iter().filter(|name| self.is(name, address)).cloned().collect()
    }

    /// Forgets the name of an address that counts the shortest when it has too many, but not the newest: that one is about to be
    /// used.
    fn crowd_out(&mut self, address: IpAddr) {
        let Some(names) = self.by_address.get_mut(&address) else { return };
        if names.len() <= NAMES_OF_ADDRESS_MAX_COUNT {
            return;
        }
        let until = |at: &usize| names.get(*at).and_then(|name| self.until.get(&(address, name.clone())));
        if let Some(shortest) = (0..names.len() - 1).min_by_key(until) {
            let name = names.remove(shortest);
            self.until.remove(&(address, name));
        }
    }

    /// Makes room: forgets the quarter that counts the shortest.
    fn forget_oldest(&mut self) {
        let mut ends: Vec<Instant> = self.until.values().copied().collect();
        ends.sort_unstable();
        let Some(edge) = ends.get(NAMES_MAX_COUNT / 4).copied() else { return };
        self.until.retain(|_, until| *until > edge);
        let until = &self.until;
        self.by_address.retain(|address, names| {
            names.retain(|name| until.contains_key(&(*address, name.clone())));
            !names.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn answers_count_for_their_time_and_only_for_their_address() {
        let mut names = Names::default();
        let (here, there): (IpAddr, IpAddr) = ("1.1.1.1".parse().unwrap(), "2.2.2.2".parse().unwrap());
        names.learn(&name("a.example"), &[here], Duration::from_secs(5));
        names.learn(&name("b.example"), &[here, there], Duration::from_secs(7200));
        assert!(names.is(&name("a.example"), here) && !names.is(&name("a.example"), there));
        assert_eq!(names.of(here).len(), 2);
        tokio::time::sleep(NAME_KEPT + Duration::from_secs(1)).await;
        assert_eq!(names.of(here), [name("b.example")]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_a_limited_number_of_names_and_the_newest_is_one() {
        let (mut names, here) = (Names::default(), "1.1.1.1".parse().unwrap());
        for number in 0..NAMES_OF_ADDRESS_MAX_COUNT {
            names.learn(&name(&format!("n{number}.example")), &[here], Duration::from_secs(7200));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        // It counts for a shorter time than all others.
        names.learn(&name("new.example"), &[here], Duration::ZERO);
        let all = names.of(here);
        assert_eq!(all.len(), NAMES_OF_ADDRESS_MAX_COUNT);
        assert!(all.contains(&name("new.example")) && !all.contains(&name("n0.example")), "{all:?}");
        assert!(!names.is(&name("n0.example"), here));
        assert_eq!(names.until.len(), NAMES_OF_ADDRESS_MAX_COUNT);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_a_limit_and_the_newest_stay() {
        let mut names = Names::default();
        for number in 0..NAMES_MAX_COUNT * 2 {
            let bits = u32::try_from(number).unwrap();
            names.learn(
                &name(&format!("n{number}.example")),
                &[IpAddr::from(bits.to_be_bytes())],
                Duration::ZERO,
            );
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(names.until.len() <= NAMES_MAX_COUNT && names.by_address.len() <= NAMES_MAX_COUNT);
        let last = u32::try_from(NAMES_MAX_COUNT * 2 - 1).unwrap();
        assert!(names.is(&name(&format!("n{last}.example")), IpAddr::from(last.to_be_bytes())));
    }
}
