# tries: take the agent's descriptors (pidfd_getfd), the sockets to the server among them
# because: pidfd_getfd is not let through, and asks like a trace; a machine's root may, and its agent is trusted with nothing beyond
# gvisor: refused
# microvm: open
my $pid = syscall(434, 1, 0); refused("pidfd_open: $!") if $pid < 0;
for my $fd (0 .. 20) { $! = 0; my $got = syscall(438, $pid, $fd, 0); succeeded("descriptor $fd") if $got >= 0 } refused("pidfd_getfd: $!");
