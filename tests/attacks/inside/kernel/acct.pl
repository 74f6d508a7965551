# tries: have the kernel write records of every process into its file
# because: it is not let through; a machine's processes are its own
# microvm: open
open my $f, ">", "/tmp/acct"; my $file = "/tmp/acct"; must_fail("acct", 163, $file);
