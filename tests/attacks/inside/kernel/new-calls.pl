# tries: pass the filter by calls that are newer than it
# because: numbers that nobody has looked at do not exist; a machine's kernel is its own
# microvm: open
# gvisor: refused
for my $n (470 .. 512, 600, 1000) { $! = 0; my $got = syscall($n, -1, -1, -1); succeeded("call $n: $got $!") unless $got == -1 && $!{ENOSYS} || $!{EPERM} } refused("none exists");
