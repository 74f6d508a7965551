//! What machines send: root of its own kernel can send any packets.

use crate::common::argv;
use crate::common::machines::{World, machine, world_with};
use crate::common::outside::{OTHER, Outside, WEB, allow};
use atoll_api::CreateSandbox;
use atoll_blackbox::{Server, wait_until};

/// Asks for a page: host, port, what to call the server, address to ask from.
pub(super) const ASK: &str = r#"
use IO::Socket::INET;
my ($host, $port, $name, $from) = @ARGV;
$SIG{ALRM} = sub { print "late"; exit };
alarm 20;
my @from = $from ? (LocalAddr => $from) : ();
my $s = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5, @from) or do { print "no: $@"; exit };
print $s "GET / HTTP/1.1\r\nHost: $name\r\nConnection: close\r\n\r\n";
print while <$s>;
"#;
/// Gives the card a second address, which root of its own kernel can.
const ALIAS: &str = r#"
use Socket;
socket(my $s, AF_INET, SOCK_DGRAM, 0) or die;
my $wish = pack("a16 S n a4 x8", "eth0:1", AF_INET, 0, inet_aton("10.0.2.99"));
ioctl($s, 0x8916, $wish) or die "ioctl: $!";
print "set";
"#;
/// Sends a datagram to a resolver outside, and a ping; prints every answer.
const DATAGRAMS: &str = r#"
use Socket;
$SIG{ALRM} = sub { print "silence"; exit };
alarm 3;
socket(my $u, AF_INET, SOCK_DGRAM, 0) or die;
send($u, "x" x 64, 0, pack_sockaddr_in(53, inet_aton("9.9.9.9")));
socket(my $p, AF_INET, SOCK_RAW, 1) or die;
send($p, pack("CCnnna8", 8, 0, 0xf7ff - 1, 1, 0, ""), 0, pack_sockaddr_in(0, inet_aton("9.9.9.9")));
defined recv($u, my $got, 100, 0) and print "ANSWERED";
print "refused";
"#;

/// The same policy as at every level, even if root in the machine sends any packets through its network card.
#[tokio::test(flavor = "multi_thread")]
async fn everything_it_sends_arrives_at_the_gateway() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    outside.web(&format!("{OTHER}:80"));
    let World { _dir, mut server } = world_with(&outside.args()).await;
    let sandbox = CreateSandbox { egress: Some(allow(&["web.test:80"])), ..machine() };
    let id = server.client.create_sandbox(&sandbox).await.unwrap().id;
    let perl = async |server: &Server, script: &str, args: &[&str]| {
        let command = argv(&[&["perl", "-e", script], args].concat());
        let exec = server.run(&id, command).await.exec.id;
        let (out, err) = crate::common::outputs(server, &id, &exec).await;
        format!("{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err))
    };
    let allowed = perl(&server, ASK, &["web.test", "80", "web.test"]).await;
    assert!(allowed.contains(&format!("hello from {WEB}")), "{allowed}");
    let own = server.url.rsplit(':').next().unwrap().to_owned();
    for (host, port, name) in [
        ("other.test", "80", "other.test"),
        // Another name at an address that is reached for a name that is allowed.
        (WEB, "80", "other.test"),
        ("169.254.169.254", "80", "x"),
        ("192.168.77.1", "80", "x"),
        // The host's own server, by the addresses that it could have.
        ("10.0.2.2", own.as_str(), "x"),
        ("10.0.2.1", own.as_str(), "x"),
    ] {
        let answer = perl(&server, ASK, &[host, port, name]).await;
        assert!(!answer.contains("hello") && !answer.contains("200 OK"), "{host} {name}: {answer}");
    }
    assert_eq!(perl(&server, ALIAS, &[]).await, "set");
    let forged = perl(&server, ASK, &["web.test", "80", "web.test", "10.0.2.99"]).await;
    assert!(forged.starts_with("no:"), "a source that is not its own: {forged}");
    assert!(!perl(&server, DATAGRAMS, &[]).await.contains("ANSWERED"));
    let dials = outside.dials();
    assert!(dials.iter().all(|dialled| dialled.starts_with(WEB)), "{dials:?}");
    assert_eq!(seen.lock().unwrap().len(), 1, "{seen:?}");
    // Without a server nothing passes; the next server takes the network up.
    server.kill();
    server.restart();
    wait_until("the network is taken up", async || {
        perl(&server, ASK, &["web.test", "80", "web.test"]).await.contains("hello from").then_some(())
    })
    .await;
    server.finish().await;
}
