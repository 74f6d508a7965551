# tries: take the host's memory by files without a name
# limits: memory_bytes=268435456
# slow: yes
# dies: yes
# because: they count as its memory
# alone: yes
my $pid = fork // refused("$!"); if (!$pid) { my $name = "m"; my $fd = syscall(319, $name, 0); exit 7 if $fd < 0; open my $f, ">&=", $fd; my $b = "x" x (16 << 20); for (1 .. 64) { syswrite($f, $b) // exit 8 } exit 0 }
waitpid $pid, 0; succeeded("1 GiB") if $? == 0; held("ended: ", $? >> 8 || $? & 127);
