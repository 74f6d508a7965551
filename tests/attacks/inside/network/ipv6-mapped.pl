# tries: pass rules for IPv4 by addresses of IPv6 that mean the same
# because: addresses are judged by what they mean
use Socket; for my $to ("::ffff:169.254.169.254", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe") {
socket(my $s, AF_INET6, SOCK_STREAM, 0) or next; eval { local $SIG{ALRM} = sub { die }; alarm 8;
if (connect($s, pack_sockaddr_in6($ENV{SERVER_PORT}, inet_pton(AF_INET6, $to)))) { syswrite $s, "GET /healthz HTTP/1.0\r\n\r\n"; sysread $s, my $got, 400; alarm 0; succeeded("$to: $got") if ($got // "") =~ m{^HTTP/1\.\d 200} } alarm 0 } } refused("none of three");
