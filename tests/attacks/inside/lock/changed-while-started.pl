# tries: write to a program of the image while it is being run
# because: what is open for running is the image's own file, or a copy, and a copy is refused
# levels: container
# execution: image
# image: layers
open(my $in, "<", "/bin/echo") or die; my $program = do { local $/; <$in> };
my $ran = 0;
my $write = fork; if (!$write) { select(undef, undef, undef, 0.02); my $out; until (open($out, "+<", "/bin/true")) { } print $out $program; truncate $out, length $program; close $out; exit 0 }
for (1 .. 200) { my $out = `/bin/true RAN 2>&1`; if ($out =~ /RAN/) { succeeded($out) } }
waitpid $write, 0; my $out = `/bin/true RAN 2>&1`; if ($out =~ /RAN/ || ($? & 127) != 9) { succeeded("in the end: $out $?") } refused("killed once it was changed");
