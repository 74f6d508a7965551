# tries: load a program into the kernel
# because: bpf is not let through; a machine's kernel is its own
my $attributes = "\0" x 128;
must_fail("bpf", 321, 5, $attributes, 128);
