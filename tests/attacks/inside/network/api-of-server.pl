# tries: reach the server's API on the host's loopback
# because: inside, loopback is its own; the gateway refuses the server's addresses
use IO::Socket::INET; for my $to ("127.0.0.1", "10.0.2.2", "0.0.0.0") {
my $s = IO::Socket::INET->new(PeerAddr => "$to:$ENV{SERVER_PORT}", Timeout => 10) or next; print $s "GET /v1/info HTTP/1.0\r\n\r\n"; alarm 30; local $/; my $got = <$s> // ""; succeeded("$to: $got") if $got =~ m{^HTTP/1\.\d (200|401)} }
refused("nobody answers as the server");
