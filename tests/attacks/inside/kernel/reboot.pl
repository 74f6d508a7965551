# tries: restart the host
# because: it is not let through; a machine is its own, and this wrong magic asks for nothing
must_fail("reboot", 169, 0xfee1dead - 1, 0, 0, 0);
