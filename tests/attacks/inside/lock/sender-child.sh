# tries: reach what only one program may, as a child of it
# because: a program that is started is another, whoever starts it
# levels: container
# from: /usr/bin/perl
ask_file
asks perl -e 'system("/tmp/copy", "/tmp/ask.pl")' 
