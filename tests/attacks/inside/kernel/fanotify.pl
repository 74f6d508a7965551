# tries: watch the host's file systems (fanotify)
# because: it is not let through; a machine's file systems are its own
# microvm: open
must_fail("fanotify_init", 300, 0, 0);
