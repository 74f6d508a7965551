# tries: run a file that never had a name (O_TMPFILE)
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
open(my $in, "<", "/bin/echo") or die; local $/; my $program = <$in>;
my $fd = call(257, -100, my $dir = "/tmp", 020200000 | 2, 0755); die "O_TMPFILE: $!" if $fd < 0;
open(my $out, ">&=", $fd) or die; binmode $out; $out->autoflush(1); print $out $program;
open(my $again, "<", "/proc/self/fd/$fd") or die; close $out;
by_descriptor(fileno $again);
