# tries: talk to netfilter (CVE-2024-1086)
# because: it wants a capability over the network namespace; a machine's kernel is its own
# microvm: open
# gvisor: refused or held
socket(my $s, 16, 3, 12) or refused("netfilter: $!");
my $new_table = pack("L S S L L", 20 + 16, 0x0a00, 0x405, 1, 0) . pack("C C n", 2, 0, 0) . pack("S S a4", 8, 1, "x\0") . "\0" x 4;
send($s, $new_table, 0) or refused("send: $!"); my $in = ""; vec($in, fileno($s), 1) = 1; select($in, undef, undef, 3) or held("no answer"); recv($s, my $answer, 4096, 0); my ($len, $type, $f, $q, $p, $error) = unpack "L S S L L l", $answer;
succeeded("a table") if defined $error && $error == 0 && $type == 2; refused("netfilter says ", $error // "nothing");
