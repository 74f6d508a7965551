# tries: reach what only one program may, by having it do so
# because: by design: what a program does with its input is its own matter; name programs that do one thing
# levels: container
# from: /usr/bin/perl
# must: open
ask_file
asks perl /tmp/ask.pl
