# tries: reach private networks next to the host
# because: private addresses are reached only by a rule that names them
use IO::Socket::INET; for my $to ("10.0.0.1:80", "172.16.0.1:80", "192.168.0.1:80", "192.168.1.1:80", "100.64.0.1:80") {
my $s = IO::Socket::INET->new(PeerAddr => $to, Timeout => 5) or next; print $s "GET / HTTP/1.0\r\nHost: x\r\n\r\n"; alarm 30; local $/; my $got = <$s> // ""; succeeded("$to: $got") if $got =~ m{^HTTP/1\.\d 2} } refused("none of five");
