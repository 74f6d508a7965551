# tries: find a descriptor that the agent left open and that leads outside
# because: everything is closed at exec; directories among them would lead up to the host's root
for my $fd (glob "/proc/self/fd/* /proc/1/fd/*") { my $to = readlink $fd; next unless defined $to;
  open my $f, "<", "$fd/../../../../../../..$ENV{BAIT}" or next; print <$f>; succeeded($fd) }
held("none leads to a directory outside");
