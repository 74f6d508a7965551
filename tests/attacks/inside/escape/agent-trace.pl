# tries: trace the agent
# because: the agent's program cannot be read, so the kernel guards its process
# levels: container
must_fail("ptrace", 101, 16, 1, 0, 0);
