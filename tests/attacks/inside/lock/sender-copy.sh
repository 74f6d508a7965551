# tries: reach what only one program may, by a copy of it
# because: the host's kernel says which file a process runs, and a copy is another
# levels: container
# from: /usr/bin/perl
ask_file
asks /tmp/copy /tmp/ask.pl
