# tries: take the agent's descriptors by lowering its limits
# because: the agent's process is guarded, and what it asks of itself it has before; a machine's root may, and its agent is trusted with nothing beyond
# microvm: open
my $limit = pack("Q Q", 3, 3); must_fail("prlimit64", 302, 1, 7, $limit, 0);
