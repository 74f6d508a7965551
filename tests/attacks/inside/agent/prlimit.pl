# tries: take the agent's descriptors by lowering its limits
# because: the agent's process is guarded; what it asks of itself it has before
# gvisor: open
# microvm: open
my $limit = pack("Q Q", 3, 3); must_fail("prlimit64", 302, 1, 7, $limit, 0);
