# tries: reach what only one program may, by writing its mark onto a socket (SO_MARK)
# because: nobody inside may set the mark of a socket
# levels: container
# from: /usr/bin/perl
ask_file
sed -i '/^unless/i setsockopt($s, 1, 36, pack("L", 0x80000000 | $_)) for 1 .. 3, map { $_ << 24 | 1 } 0 .. 127;' /tmp/ask.pl
asks /tmp/copy /tmp/ask.pl
