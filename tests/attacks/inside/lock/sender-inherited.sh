# tries: reach what only one program may, over a connection that it made and hands over
# because: by design: a connection speaks as who made it, whoever has it then
# levels: container
# from: /usr/bin/perl
# must: open
ask_file
asks perl -e 'use Socket; $^F = 99; socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, pack_sockaddr_in(3128, inet_aton("10.0.2.2"))) or die; $ENV{CONNECTED} = 1; exec "/tmp/copy", "/tmp/ask.pl", fileno($s)' 
