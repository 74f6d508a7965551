# tries: reach what only one program may, by telling the kernel that it runs that file (PR_SET_MM_EXE_FILE)
# because: what counts is which file was executed, not what /proc/self/exe shows
# levels: container
# from: /usr/bin/perl
ask_file
sed -i '1i open(my $f, "<", "/usr/bin/perl"); syscall(157, 35, 13, fileno($f), 0, 0); my $m = pack("Q13", (0) x 13); syscall(157, 35, 14, $m, length $m, 0);' /tmp/ask.pl
asks /tmp/copy /tmp/ask.pl
