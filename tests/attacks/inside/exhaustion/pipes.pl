# tries: take the kernel's memory by pipes that are full
# limits: memory_bytes=268435456
# because: pipes of one user are limited, and their memory counts as its own
my (@r, $n); $n = 0; for (1 .. 1500) { pipe my $r, my $w or last; fcntl($w, 4, 2048); syswrite $w, "x" x 65536; push @r, $r, $w; $n++ } held("$n pipes of its own");
