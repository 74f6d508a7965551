# tries: run a file that has no name any more
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
open(my $in, "<", "/bin/echo") or die; local $/; my $program = <$in>;
open(my $out, ">", "/tmp/x") or die; binmode $out; print $out $program; close $out; chmod 0755, "/tmp/x";
open(my $x, "<", "/tmp/x") or die; unlink "/tmp/x";
by_descriptor(fileno $x);
