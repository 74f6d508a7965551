# tries: read keys of the host's users, which are in no namespace
# because: keyrings are not let through; in gVisor and a machine they are another kernel's
# gvisor: open
# microvm: open
must_fail("keyctl", 250, 0, -3, 0);
