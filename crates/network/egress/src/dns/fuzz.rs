//! Questions that a sandbox may send and answers that a resolver may give, found by coverage: `make fuzz`. They also run for
//! a short time with the other tests.

use std::net::IpAddr;
use std::time::Duration;

use atoll_core::id::SandboxId;
use atoll_core::network::Transferred;
use atoll_core::policy::{Destination, EgressPolicy, HostName, Http};
use bolero::check;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};

use crate::budget::{Budget, Common};

use super::cache::Cache;
use super::message::{answer, for_udp, question};
use super::servers::{Asked, read, response_to};
use crate::limits::{DNS_ADDRESSES_MAX_COUNT, DNS_TTL_MAX};
use crate::sandbox::SandboxNet;

/// What the gateway asked.
const ID: u16 = 0x1234;
const NAME: &str = "a.example";
const KINDS: [RecordType; 5] =
    [RecordType::A, RecordType::AAAA, RecordType::CNAME, RecordType::MX, RecordType::SRV];

#[test]
fn questions_to_the_resolver() {
    check!().for_each(|bytes: &[u8]| {
        let Some(asked) = question(bytes) else { return };
        let told = answer(&asked, ResponseCode::Refused, Vec::new(), Some("no rule allows it"));
        let Some(sent) = for_udp(&asked, &told) else { return };
        assert!(sent.len() <= 1232 && question(&sent).is_none());
    });
}

/// Addresses that nobody outside has, by the standard library's own account.
fn is_inside(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
        }
    }
}

#[test]
fn answers_of_resolvers() {
    let name = Name::from_ascii(format!("{NAME}.")).unwrap();
    let host: HostName = NAME.parse().unwrap();
    check!().for_each(|input: &[u8]| {
        let Some((kind, bytes)) = input.split_first() else { return };
        let kind = KINDS[usize::from(*kind) % KINDS.len()];
        let Some(response) = response_to(Asked { id: ID, name: &name, kind }, bytes) else { return };
        // The id, and the bit that tells an answer from a question, where the protocol has them.
        assert!(bytes[..2] == ID.to_be_bytes() && bytes[2] & 0x80 != 0);
        let Ok(found) = read(response, kind) else { return };
        assert!(matches!(bytes[3] & 0xf, 0 | 3), "an error is no answer");

        assert!(found.ttl <= DNS_TTL_MAX);
        for record in &found.records {
            assert!([kind, RecordType::CNAME].contains(&record.record_type()), "{record:?}");
            assert!(Duration::from_secs(u64::from(record.ttl)) <= found.ttl, "{record:?}");
        }
        let cache = Cache::default();
        cache.put(&host, kind, &found);
        if let Some(kept) = cache.get(&host, kind) {
            let in_time = |ttl: u32| Duration::from_secs(u64::from(ttl)) <= kept.ttl;
            assert!(
                kept.ttl <= found.ttl && kept.records.iter().all(|record| in_time(record.ttl)),
                "{kept:?}"
            );
        }

        // What the sandbox may do with it: a name makes no address reachable that is not outside.
        let addresses = found.addresses();
        assert!(addresses.len() <= DNS_ADDRESSES_MAX_COUNT);
        let budget = Budget::new(&Common::new(0));
        let (id, policy) = (SandboxId::from_parts(1, 1), EgressPolicy::open());
        let net = SandboxNet::new(id, policy, Transferred::default(), budget);
        net.learn(&host, &addresses, found.ttl);
        for address in addresses {
            assert!(net.is_name_of(&host, address));
            let to =
                Destination { name: Some(&host), address, port: 443, own: false, closed: None, sender: None };
            let decision = net.policy().decide(&to, Http::Unknown);
            assert!(!(decision.allowed && is_inside(address)), "{address} is reached by a name");
        }

        // What the sandbox is told.
        let mut asked = Message::new(7, MessageType::Query, OpCode::Query);
        asked.add_query(Query::query(name.clone(), kind));
        let told = answer(&asked, ResponseCode::NoError, found.records.clone(), None);
        assert!(u16::try_from(told.to_vec().unwrap().len()).is_ok(), "it fits over TCP");
        let sent = for_udp(&asked, &told).expect("every answer can be passed on");
        let sent_len = sent.len();
        let sent = Message::from_vec(&sent).unwrap();
        assert!(sent_len <= 512 && sent.metadata.id == 7 && sent.queries == asked.queries, "{sent:?}");
        assert!(sent.metadata.truncation || sent.answers == found.records, "{sent:?} of {found:?}");
    });
}
