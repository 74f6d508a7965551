# tries: have the kernel load protocols that nobody uses, by protocols of IPv4, IPv6 and netlink (SCTP, DCCP, L2TP, RDMA, encryption)
# because: the kernel is not even asked for others than a few; gVisor knows no more; a machine's kernel is its own, and what it has is compared with a list
# container: refused
my ($level, %got) = $ENV{LEVEL};
# What is there, with the reason; for a container, what its kernel may be asked for.
my $plain = "what programs use"; my %there = map { $_ => $plain } "2/0", "2/1", "2/6", "2/17", "2/58", "2/262", "10/0", "10/1", "10/6", "10/17", "10/58", "10/262",
  "16/0", "16/2", "16/9", "16/15";
if ($level eq "microvm") { %there = (%there, "2/136" => "UDP-Lite, built into its own kernel", "10/136" => "UDP-Lite, built into its own kernel", "16/4" => "its own sockets", "16/16" => "families of its own kernel", "16/7" => "notices of a module that is not on", "16/10" => "its own routes", "16/11" => "its own processes", "16/6" => "IPsec of its own kernel (kernel/xfrm)",
  "16/12" => "packet filters of its own kernel (kernel/netfilter)"); }
# Pairs of type and protocol that are there: for every other pair the kernel would look for a module.
my %pairs = map { $_ => 1 } "2/0/1", "2/6/1", "2/262/1", "2/0/2", "2/17/2", "2/1/2", "10/0/1", "10/6/1", "10/262/1", "10/0/2", "10/17/2", "10/58/2";
for my $family (2, 10, 16) { for my $protocol (0 .. 300) { for my $type (1 .. 6) {
  next if $type == 3 && $family != 16;    # kernel/raw-socket
  $! = 0; my $made = socket(my $s, $family, $type, $protocol); my $asked = $level eq "container" && !$!{EPERM};
  $got{"$family/$protocol by type $type"} = 1 if $asked && $family != 16 && !$pairs{"$family/$protocol/$type"};
  my $rare = !$there{"$family/$protocol"} || $family != 16 && $type > 3; $got{"$family/$protocol by type $type"} = 1 if $rare && ($made || $asked);
} } }
my @got = sort keys %got; succeeded(scalar(@got), " of them: @got") if @got; $level eq "microvm" ? held("none but those that are known") : refused("none");
