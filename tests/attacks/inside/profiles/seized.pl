# tries: trace the agent without stopping it
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
must_fail("ptrace", 101, 0x4206, $ENV{AGENT} + 0, 0, 0);
