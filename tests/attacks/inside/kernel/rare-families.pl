# tries: have the kernel load protocols that nobody uses, by families of sockets
# because: the kernel is asked for unix, IPv4, IPv6 and netlink, and for no other family; gVisor knows no more; a machine's kernel is its own, and what it has is compared with a list
# container: refused
# gvisor: refused
# Families that are there, with the reason.
my %there = $ENV{LEVEL} eq "microvm" ? (17 => "packets: they end at the gateway (kernel/packet-socket)", 44 => "XDP: built into the kernel of a machine; its card is the gateway's") : ();
my %got; for my $family (3 .. 9, 11 .. 15, 17 .. 64) { for my $type (1 .. 6, 10) { for my $protocol (0, 1, 2) { $! = 0; (socket(my $s, $family, $type, $protocol) || $ENV{LEVEL} eq "container" && !$!{EPERM}) and $got{$family} = 1 } } }
my @others = grep { !$there{$_} } sort keys %got; succeeded("@others") if @others; held(join "; ", map { "$_: $there{$_}" } sort keys %got) if %got; refused("none of 60");
