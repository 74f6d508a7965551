# tries: make an interface of its own and route past the gateway
# because: it wants a capability over the network namespace; a machine's leads nowhere else
# microvm: open
# gvisor: refused or held
socket(my $s, 16, 3, 0) or refused("netlink: $!");
my $message = pack("L S S L L", 32, 16, 0x605, 1, 0) . pack("C C S l L L", 0, 0, 0, 0, 0, 0); send($s, $message, 0) or refused("$!");
my $in = ""; vec($in, fileno($s), 1) = 1; select($in, undef, undef, 3) or held("no answer"); recv($s, my $answer, 4096, 0); my (undef, undef, undef, undef, undef, $error) = unpack "L S S L L l", $answer; succeeded("a link") if defined $error && $error == 0; refused("netlink says ", $error // "nothing");
