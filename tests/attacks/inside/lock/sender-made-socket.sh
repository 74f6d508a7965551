# tries: reach what only one program may, over a socket that it made
# because: who connects counts, not who made the socket
# levels: container
# from: /usr/bin/perl
ask_file
asks perl -e 'use Socket; $^F = 99; socket(my $s, PF_INET, SOCK_STREAM, 0); exec "/tmp/copy", "/tmp/ask.pl", fileno($s)' 
