# tries: swap onto a file of its own
# because: it is not let through
# microvm: refused
my $file = "/tmp/none"; must_fail("swapon", 167, $file, 0);
