# tries: read the memory of the agent with process_vm_readv
# because: its Landlock domain is another than the agent's
# levels: container
# profile: agent
my $to = "\0" x 64; my $local = pack("PQ", $to, 64); my $remote = pack("QQ", 0x400000, 64); must_fail("process_vm_readv", 310, $ENV{AGENT} + 0, $local, 1, $remote, 1, 0);
