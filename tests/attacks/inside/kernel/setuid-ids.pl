# tries: become an id that nobody mapped
# because: ids inside end where its range ends; in gVisor and a machine they are another kernel's
# microvm: open
# gvisor: open
must_fail("setresuid", 117, 70000, 70000, 70000);
