# tries: take the host's queued signals and timers
# limits: memory_bytes=268435456
# because: they are counted for each sandbox's own users
my $n = 0; for (1 .. 6000) { my $id = "\0" x 8; my $event = "\0" x 64; syscall(222, 1, 0, $id) == 0 or last; $n++ } held("$n, and its own");
