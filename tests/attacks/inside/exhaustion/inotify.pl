# tries: take the host's inotify instances
# because: they are counted for each sandbox; in gVisor and a machine they are another kernel's
# microvm: open
# gvisor: open
my $n = 0; while ($n < 5000) { my $fd = syscall(253); last if $fd < 0; $n++ } succeeded($n) if $n >= 5000; held("$n, then no more");
