# tries: leave the root by pivot_root
# because: the call is not let through, or moves only what is its own
# gvisor: refused
mkdir "/tmp/r"; mkdir "/tmp/r/old";
must_fail("pivot_root", 155, my $new = "/tmp/r", my $old = "/tmp/r/old");
