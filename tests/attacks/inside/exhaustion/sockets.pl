# tries: take the kernel's memory by sockets and what waits in them
# limits: memory_bytes=268435456
# because: the memory counts as its own, or the limit of open files comes first
use Socket; my (@s, $n); $n = 0; for (1 .. 500) { socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or last; fcntl($a, 4, 2048); syswrite $a, "x" x 65536 for 1 .. 3; push @s, $a, $b; $n++ } held("$n pairs of its own");
