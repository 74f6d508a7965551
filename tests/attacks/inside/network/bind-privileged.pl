# tries: squat on the gateway's own ports inside
# because: it takes only what is its own; the gateway's sockets are steered by the kernel, not by who binds
use IO::Socket::INET; my @got; for my $p (53, 80, 443, 3128) { my $s = IO::Socket::INET->new(LocalAddr => "0.0.0.0:$p", Listen => 1, ReuseAddr => 1) and push @got, $p } held("bound @got, all of them its own");
