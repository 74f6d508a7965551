# tries: take the host's terminals
# because: each sandbox's devpts has a limit; in gVisor and a machine they are another kernel's, in the sandbox's own memory
# gvisor: open
# microvm: open
my @t; for (1 .. 4000) { open my $t, "+<", "/dev/ptmx" or last; push @t, $t } my $n = @t; succeeded($n) if $n > 1000; held("$n, then no more");
