# tries: run a copy of a denied program from a memory file
# because: memory is not the image
# levels: container
# execution: image
# rules: deny /bin/echo
open(my $in, "<", "/bin/echo") or die; local $/; my $program = <$in>;
my $fd = call(319, my $name = "m", 0); die if $fd < 0;
open(my $out, ">&=", $fd) or die; binmode $out; $out->autoflush(1); print $out $program;
by_descriptor($fd);
