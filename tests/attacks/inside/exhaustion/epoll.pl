# tries: take the host's watches of epoll
# because: they are counted for each sandbox's own users
my $n = 0; for (1 .. 2000) { my $fd = syscall(291, 0); last if $fd < 0; $n++ } held("$n of its own");
