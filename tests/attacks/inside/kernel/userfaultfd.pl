# tries: stop the kernel in the middle of a copy (userfaultfd)
# because: it is not let through; a machine stops its own kernel
# microvm: open
must_fail("userfaultfd", 323, 0);
