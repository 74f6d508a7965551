# tries: use io_uring, whose calls no filter sees
# because: it is not let through; gVisor's own has it off, and a machine's is answered by its own kernel
# microvm: open
my $parameters = "\0" x 120; must_fail("io_uring_setup", 425, 4, $parameters);
