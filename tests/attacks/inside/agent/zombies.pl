# tries: leave so many zombies that the agent cannot begin anything
# because: the limit is the sandbox's own
my $n = 0; for (1 .. 200) { my $p = fork; last unless defined $p; exit 0 unless $p; $n++ } held("$n zombies of its own");
