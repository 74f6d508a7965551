# tries: take the host's huge pages
# because: they are no sandbox's, and refused as if there were none; a machine's are in its own memory
# microvm: open
# gvisor: refused or held
my $got = syscall(9, 0, 2 << 20, 3, 0x40022, -1, 0); refused("huge: $!") if $got == -1; held("mapped, and counted as its memory");
