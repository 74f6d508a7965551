# tries: watch the host's file systems (fanotify)
# because: it is not let through
# microvm: open
must_fail("fanotify_init", 300, 0, 0);
