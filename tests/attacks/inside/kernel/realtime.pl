# tries: take a processor for itself (SCHED_FIFO)
# because: it wants a capability that counts on the host; a machine shares out among its own processes
# microvm: open
my $parameters = pack("l", 50); must_fail("sched_setscheduler", 144, 0, 1, $parameters);
