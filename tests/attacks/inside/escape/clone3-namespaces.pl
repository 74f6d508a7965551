# tries: get namespaces by clone3, whose flags a filter cannot see
# because: new user namespaces are limited to none inside, and others want a capability that root inside has not; in gVisor and a machine they are another kernel's
# gvisor: open
# microvm: open
my $flags = 0x10000000 | 0x20000; my $arguments = pack("Q8", $flags, 0, 0, 0, 17, 0, 0, 0);
$! = 0; my $pid = syscall(435, $arguments, 64);
if ($pid == 0) { syscall(231, 0) } if ($pid > 0) { waitpid $pid, 0; succeeded("a process in namespaces of its own") } refused("clone3: $!");
