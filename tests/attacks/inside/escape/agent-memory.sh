# tries: write to the memory of the agent, which has descriptors that the server trusts
# because: the agent's file cannot be read, so the kernel guards its process from root inside; in gVisor and a machine root may, and the agent is trusted with nothing beyond
# gvisor: open
# microvm: open
line_must_fail "head -c 1 /proc/1/mem || head -c 1 /proc/1/maps | grep ."
