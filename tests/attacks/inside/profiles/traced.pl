# tries: trace the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
must_fail("ptrace", 101, 16, $ENV{AGENT} + 0, 0, 0);
