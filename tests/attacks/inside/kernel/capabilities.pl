# tries: find a capability that counts on the host
# because: what it has counts in its user namespace only
open my $f, "<", "/proc/self/uid_map"; my ($in, $out, $count) = split " ", <$f> // "";
succeeded("root is root outside") if $ENV{LEVEL} eq "container" && defined $out && $out == 0; held("root here is ", $out // "?", " outside");
