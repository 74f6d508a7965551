# tries: reach what only one program may, from a user namespace of its own
# because: the host's kernel says which file a process runs, and a copy is another
# levels: container
# from: /usr/bin/perl
ask_file
out=$(unshare --user --map-root-user true 2>&1) || refused "$out"
asks unshare --user --map-root-user /tmp/copy /tmp/ask.pl
