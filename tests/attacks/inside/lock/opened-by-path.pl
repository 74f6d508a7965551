# tries: run a copy of a program by a descriptor that was opened as a path (O_PATH)
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
open(my $in, "<", "/bin/echo") or die; local $/; my $program = <$in>;
open(my $out, ">", "/tmp/x") or die; binmode $out; print $out $program; close $out; chmod 0755, "/tmp/x";
my $fd = call(257, -100, my $path = "/tmp/x", 010000000, 0); die if $fd < 0;
by_descriptor($fd);
