# tries: take the host's slots for asynchronous I/O
# because: they are one number for the host, so they are not there; in gVisor and a machine they are another kernel's
# gvisor: open
# microvm: open
my $context = "\0" x 8; must_fail("io_setup", 206, 60000, $context);
