# tries: reach what only one program may, with its arguments (argv[0])
# because: the host's kernel says which file a process runs, and a copy is another
# levels: container
# from: /usr/bin/perl
ask_file
asks perl -e 'exec {"/tmp/copy"} "/usr/bin/perl", "/tmp/ask.pl"' 
