# tries: trace the agent
# because: as above
# gvisor: open
# microvm: open
must_fail("ptrace", 101, 16, 1, 0, 0);
