# tries: read another process's memory (process_vm_readv) where it may not trace it
# because: the agent is guarded from root inside; in gVisor and a machine root rules a kernel of its own, and the agent is trusted with nothing beyond
# microvm: open
# gvisor: open
my $pid = fork // die; if (!$pid) { sleep 20; exit }
my $buffer = "\0" x 16; my $local = pack("P Q", $buffer, 16); my $remote = pack("Q Q", 0x400000, 16);
$! = 0; my $got = syscall(310, 1, $local, 1, $remote, 1, 0); kill 9, $pid;
succeeded("process 1: $got bytes") if $got > 0; refused("process_vm_readv: $!");
