# tries: reach what only one program may, under its name and path
# because: the host's kernel says which file a process runs, and a copy is another
# levels: container
# from: /usr/bin/perl
ask_file
mkdir -p /tmp/p; cp /tmp/copy /tmp/p/perl; PATH=/tmp/p:$PATH
asks perl /tmp/ask.pl
