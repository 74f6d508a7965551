# tries: take the kernel's memory by locks of files
# limits: memory_bytes=268435456
# because: their memory counts as its own
open my $f, "+>", "/tmp/l"; my $n = 0; for (1 .. 1500) { my $l = pack("s s x4 q q l x4", 1, 0, $_ * 2, 1, 0); fcntl($f, 6, $l) or last; $n++ } held("$n of its own");
