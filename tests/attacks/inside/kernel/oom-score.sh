# tries: have the kernel kill anybody else first when memory runs out
# because: lowering the score wants a capability that counts on the host; in gVisor and a machine it is another kernel's
# gvisor: open
# microvm: open
line_must_fail "echo -1000 > /proc/self/oom_score_adj"
