# tries: have the kernel load protocols that nobody uses, by families of sockets
# because: only unix, IPv4, IPv6 and netlink are let through
my @got; for my $family (3 .. 9, 11 .. 15, 18 .. 45) { socket(my $s, $family, $_, 0) and push @got, $family for 1, 2, 3, 5 }
@got = grep { $ENV{LEVEL} eq "container" } @got; succeeded("@got") if @got; refused("none of 38");
