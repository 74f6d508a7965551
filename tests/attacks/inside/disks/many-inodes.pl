# tries: take the host's inodes
# because: they are those of its own disk
my $n = 0; mkdir "/tmp/i"; for (1 .. 3000) { open my $f, ">", "/tmp/i/$_" or last; $n++ } held("$n of its own disk's");
