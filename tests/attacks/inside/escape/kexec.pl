# tries: start another kernel
# because: the call is not let through; a machine's kernel is its own to replace, and what confines it is outside
# microvm: open
must_fail("kexec_load", 246, 0, 0, 0, 0);
