# tries: set up an IPsec association by netlink (xfrm; CVE-2026-43284: Dirty Frag)
# because: every such message wants a capability over the network namespace; gVisor has no such protocol, and a machine's kernel is its own
# gvisor: refused
# microvm: open
socket(my $s, 16, 3, 6) or refused("xfrm: $!");
# To make an association, and to remove all: any answer but EPERM comes from behind the question for the capability.
for my $message ([0x10, 224], [0x1c, 8]) {
  my ($type, $bytes) = @$message; send($s, pack("L S S L L", 16 + $bytes, $type, 5, 1, 0) . "\0" x $bytes, 0) or refused("send: $!");
  my $in = ""; vec($in, fileno($s), 1) = 1; select($in, undef, undef, 10) or die "no answer"; recv($s, my $answer, 4096, 0) // die "$!";
  my (undef, $kind, undef, undef, undef, $error) = unpack "L S S L L l", $answer; $kind == 2 or die "message $kind";
  succeeded("message $type: $error") if $error != -&Errno::EPERM;
}
refused("xfrm says EPERM");
