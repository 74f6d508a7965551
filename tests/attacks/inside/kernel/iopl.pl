# tries: get at the ports of the hardware
# because: it is not let through; what a machine has there is QEMU's
# microvm: open
must_fail("iopl", 172, 3);
