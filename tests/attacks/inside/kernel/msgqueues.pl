# tries: fill the host's message queues, which stay when a process ends
# because: the IPC namespace is its own, and goes with it
my $made = 0; for (1 .. 40000) { my $q = msgget($_, 01600); last unless defined $q; $made++ } held("$made of its own");
