# tries: a fork bomb
# limits: pids=200
# because: the number of processes is limited
# alone: yes
my $n = 0; my @p; while ($n < 1000) { my $p = fork; last unless defined $p; if (!$p) { sleep 60; exit } push @p, $p; $n++ } kill 9, @p; succeeded("$n processes") if $n >= 1000; held("$n, then no more");
