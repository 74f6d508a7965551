# tries: write to the memory of the agent, which has descriptors that the server trusts
# because: the agent's file cannot be read, so the kernel guards its process from root inside
# gvisor: open
# microvm: open
line_must_fail "head -c 1 /proc/1/mem || head -c 1 /proc/1/maps | grep ."
