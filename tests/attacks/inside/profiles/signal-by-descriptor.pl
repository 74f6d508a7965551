# tries: send the agent a signal by a descriptor
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
my $pid = call(434, $ENV{AGENT} + 0, 0); $pid >= 0 or refused("pidfd_open: $!"); must_fail("pidfd_send_signal", 424, $pid, 10, 0, 0);
