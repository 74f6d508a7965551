# tries: watch other processes' caches by performance events
# because: they are not let through; a machine's kernel sees its own processes
# microvm: open
my $a = pack("L2Q14", 0, 112, (0) x 14); must_fail("perf_event_open", 298, $a, 0, -1, -1, 0);
