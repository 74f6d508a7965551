# tries: start another kernel
# because: the call is not let through
must_fail("kexec_load", 246, 0, 0, 0, 0);
