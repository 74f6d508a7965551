# tries: send datagrams past the gateway
# because: there is no way for anything but TCP to the gateway and questions to its resolver
use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "8.8.8.8:53", Proto => "udp") or refused("$!");
my $question = pack("n6", 7, 0x100, 1, 0, 0, 0) . "\x07example\x03com\0" . pack("n2", 1, 1); send($s, $question, 0) or refused("$!");
my $in = ""; vec($in, fileno($s), 1) = 1; select($in, undef, undef, 3) or held("no answer"); recv($s, my $got, 512, 0) or refused("$!"); succeeded("an answer") if length($got) > 40; refused("an empty answer");
