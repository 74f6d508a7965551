# tries: become an id that nobody mapped
# because: ids inside end where its range ends
# microvm: open
# gvisor: refused or held
must_fail("setresuid", 117, 70000, 70000, 70000);
