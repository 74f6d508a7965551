//! The host's list of names, in the form of `/etc/hosts`: as programs on the host do, the resolver looks there before it
//! asks a server.
//!
//! What the list says is only which addresses a name has. Whether a sandbox may look the name up, and connect to them, is
//! for its policy to say, as for any other name: most of these addresses are private, which a rule must open by address.

use std::collections::HashMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use atoll_core::policy::HostName;
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::time::Instant;

use super::Answer;
use crate::limits::{DNS_ADDRESSES_MAX_COUNT, HOSTS_MAX_BYTES};

/// How long an answer counts, and the list is believed before the file is looked at again.
const KEPT: Duration = Duration::from_secs(5);

type Names = HashMap<HostName, Vec<IpAddr>>;

/// The list, read again when the file has changed.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// Where it is, if there is one to be used.
    path: Option<PathBuf>,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    looked_at: Instant,
    /// Time of the last change and size in bytes, by which a change is noticed.
    version: Option<(SystemTime, u64)>,
    names: Arc<Names>,
}

impl Hosts {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, known: Mutex::new(None) }
    }

    /// The answer for a name that stands in the list, to a question for addresses. `None`: ask a server.
    pub(crate) fn find(&self, name: &HostName, kind: RecordType) -> Option<Answer> {
        let names = self.names()?;
        let addresses = names.get(name)?;
        let owner = Name::from_ascii(format!("{name}.")).ok()?;
        let data = |address: &IpAddr| match (address, kind) {
            (IpAddr::V4(v4), RecordType::A) => Some(RData::A(A(*v4))),
            (IpAddr::V6(v6), RecordType::AAAA) => Some(RData::AAAA(AAAA(*v6))),
            _ => None,
        };
        if !matches!(kind, RecordType::A | RecordType::AAAA) {
            return None;
        }
        let seconds = u32::try_from(KEPT.as_secs()).unwrap_or(u32::MAX);
        let records = addresses.iter().filter_map(data);
        let records = records.map(|data| Record::from_rdata(owner.clone(), seconds, data)).collect();
        Some(Answer { exists: true, records, ttl: KEPT })
    }

    fn names(&self) -> Option<Arc<Names>> {
        let path = self.path.as_deref()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && known.looked_at.elapsed() < KEPT
        {
            return Some(Arc::clone(&known.names));
        }
        let version = version(path);
        let names = match &*known {
            Some(known) if known.version == version => Arc::clone(&known.names),
            // A small file, when it has changed: not worth another thread.
            Some(_) | None => Arc::new(parse(&read(path))),
        };
        *known = Some(Known { looked_at: Instant::now(), version, names: Arc::clone(&names) });
        Some(names)
    }
}

fn version(path: &Path) -> Option<(SystemTime, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// The file, as far as [`HOSTS_MAX_BYTES`]; nothing when it cannot be read.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(HOSTS_MAX_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read {
        tracing::warn!(path = %path.display(), %error, "the list of hosts cannot be read");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lines of an address and names. Addresses of this computer itself (`127.0.0.1`) are left out, because inside a sandbox they mean the
/// sandbox; a name that has only `0.0.0.0` has no address, as lists of blocked hosts mean it.
fn parse(text: &str) -> Names {
    let mut names = Names::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        if address.is_loopback() {
            continue;
        }
        for name in words.filter_map(|word| word.parse::<HostName>().ok()) {
            let addresses = names.entry(name).or_default();
            if !address.is_unspecified() && addresses.len() < DNS_ADDRESSES_MAX_COUNT {
                addresses.push(address);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn lines_are_names_of_addresses() {
        let names = parse(
            "# a comment\n127.0.0.1 localhost\n127.0.1.1 this.example this\n10.1.2.3\tdb.example  DB # both\n\
             fd00::7 db.example\n0.0.0.0 ads.example\nnonsense x.example\n10.9.9.9 bad_name! ok.example\n::1 six\n",
        );
        let addresses = |text: &str| names.get(&name(text)).map(Vec::len);
        assert_eq!(
            names[&name("db.example")],
            ["10.1.2.3".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]
        );
        assert_eq!(
            (addresses("db"), addresses("ok.example"), addresses("ads.example")),
            (Some(1), Some(1), Some(0))
        );
        for absent in ["localhost", "this.example", "this", "x.example", "six"] {
            assert_eq!(addresses(absent), None, "{absent}");
        }
    }

    #[test]
    fn only_questions_for_addresses_are_answered() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10.1.2.3 db.example\n0.0.0.0 ads.example\n").unwrap();
        let hosts = Hosts::new(Some(file.path().to_owned()));
        let found = |text, kind| hosts.find(&name(text), kind).map(|answer| answer.addresses().len());
        assert_eq!(found("db.example", RecordType::A), Some(1));
        assert_eq!(
            found("db.example", RecordType::AAAA),
            Some(0),
            "the name is known, and has none of these"
        );
        assert_eq!(found("ads.example", RecordType::A), Some(0));
        assert_eq!(found("db.example", RecordType::MX), None);
        assert_eq!(found("other.example", RecordType::A), None);
        assert!(Hosts::new(None).find(&name("db.example"), RecordType::A).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "10.1.2.3 db.example\n").unwrap();
        let hosts = Hosts::new(Some(file.path().to_owned()));
        let find = || hosts.find(&name("db.example"), RecordType::A).map(|answer| answer.addresses());
        assert_eq!(find(), Some(vec!["10.1.2.3".parse().unwrap()]));
        std::fs::write(file.path(), "10.1.2.30 db.example\n").unwrap();
        tokio::time::advance(KEPT).await;
        assert_eq!(find(), Some(vec!["10.1.2.30".parse().unwrap()]));
        std::fs::remove_file(file.path()).unwrap();
        tokio::time::advance(KEPT).await;
        assert_eq!(find(), None);
    }
}
