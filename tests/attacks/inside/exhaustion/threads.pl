# tries: take the host's threads, by a program that makes nothing else
# limits: pids=200
# because: threads count as processes
my $n = 0; my $stack = "\0" x 65536;
for (1 .. 1000) { my $p = syscall(58) ; if ($p == 0) { syscall(60, 0) } last if $p < 0; $n++ } $SIG{CHLD} = "DEFAULT";
succeeded("$n that nobody waits for") if $n >= 1000; held("$n, then no more");
