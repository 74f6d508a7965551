# tries: run a denied program by a descriptor (fexecve)
# because: a rule means the image's file, under whatever name it runs
# levels: container
# execution: any
# rules: deny /bin/echo
open(my $in, "<", "/bin/echo") or die;
by_descriptor(fileno $in);
