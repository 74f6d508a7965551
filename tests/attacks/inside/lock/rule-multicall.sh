# tries: run a denied program by a program that has many in it (busybox, perl, coreutils)
# because: by design: a program that may run does what it can; deny it, too
# levels: container
# execution: image
# rules: deny /bin/echo
# must: open
killed perl -e 'print "RAN\n"' 
