# tries: take a descriptor of the agent
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
my $pid = call(434, $ENV{AGENT} + 0, 0); $pid >= 0 or refused("pidfd_open: $!"); for my $fd (3 .. 9) { next if call(438, $pid, $fd, 0) == -1; succeeded("descriptor $fd") } refused("pidfd_getfd: $!");
