# tries: lock memory beyond its share
# because: locked memory is limited, and counted as its own; a machine locks its own memory
# microvm: open
my $got = syscall(9, 0, 1 << 30, 3, 0x22, -1, 0); refused("mmap: $!") if $got == -1; must_fail("mlock", 149, $got, 1 << 30);
