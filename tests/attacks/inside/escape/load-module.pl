# tries: load a kernel module
# because: the calls are not let through; a machine's kernel is its own
must_fail("init_module", 175, my $image = "\x7fELF", 4, my $none = "");
