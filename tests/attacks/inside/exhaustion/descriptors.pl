# tries: take the host's open files
# limits: memory_bytes=268435456
# because: each process has a limit, and their memory counts as its own
my @f; while (@f < 300_000) { open my $f, "<", "/dev/null" or last; push @f, $f } my $n = @f; succeeded($n) if $n >= 300_000; held("$n, then no more");
