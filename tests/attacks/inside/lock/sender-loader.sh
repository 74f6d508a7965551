# tries: reach what only one program may, by the dynamic loader
# because: what was executed is the loader
# levels: container
# from: /usr/bin/perl
ask_file
asks $(readlink -f /lib64/ld-linux-x86-64.so.2) /usr/bin/perl /tmp/ask.pl
