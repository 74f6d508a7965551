# tries: keep the host's disk busy with syncing
# slow: yes
# because: its disk is scratch: fsync inside waits for nothing
# alone: yes
open my $f, ">", "/tmp/s"; for (1 .. 500) { syswrite $f, "x" x 4096; syscall(74, fileno $f) } syscall(162); held("done");
