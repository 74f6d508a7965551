# tries: have the kernel look for modules by a name, which starts a program of the host's root each time: families of generic netlink and of lists of sockets, bridges, VLANs, frame relay, line disciplines of terminals, algorithms of TCP's signatures
# because: the sockets and requests that lead there are not let through; gVisor's sentry has no modules; a machine's kernel is its own
# container: refused
# microvm: open
use constant { NETLINK => 16, GENERIC => 16, SOCK_DIAG => 4 };
my $level = $ENV{LEVEL}; my @got;
for my $protocol (GENERIC, SOCK_DIAG) { for my $type (2, 3) { $! = 0;
  my $made = socket(my $s, NETLINK, $type, $protocol); push @got, "netlink $protocol" if $made || $level eq "container" && !$!{EPERM} } }
# CTRL_CMD_GETFAMILY of a family that no kernel has, for where there is such a socket.
if (socket(my $s, NETLINK, 3, GENERIC)) { my $name = "atoll-none\0\0";
  my $message = pack("SS a*", 4 + length($name), 2, $name); $message = pack("CCS", 3, 1, 0) . $message;
  syswrite($s, pack("LSSLL", 16 + length($message), 16, 5, 1, 0) . $message) }
# SIOCGIFBR, SIOCSIFBR, SIOCADDDLCI, SIOCDELDLCI, SIOCGIFVLAN, SIOCSIFVLAN, SIOCBRADDBR, SIOCBRDELBR
socket(my $inet, 2, 2, 0) or die "a socket: $!";
for my $request (0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983, 0x89a0, 0x89a1) { for my $upper (0, 1 << 32) {
  my $argument = "\0" x 256; $! = 0; my $result = call(16, fileno($inet), $request | $upper, $argument);
  push @got, sprintf("request %#x (%s)", $request, $!) if $result == 0 || $level eq "container" && !$!{EPERM} } }
# TIOCSETD of a discipline that is a module everywhere (N_HDLC) and of one that is none.
if (open(my $terminal, "+<", "/dev/ptmx")) { for my $discipline (13, 29) {
  my $argument = pack("i", $discipline); $! = 0; my $result = call(16, fileno($terminal), 0x5423, $argument);
  push @got, "line discipline $discipline ($!)" if $result == 0 || $level eq "container" && !$!{EPERM} } } else { die "a terminal: $!" }
# The option TCP_AO_ADD_KEY; the kernel would refuse a key that is too short with EINVAL. gVisor takes every option that it does
# not know, and does nothing with it.
socket(my $tcp, 2, 1, 0) or die "a socket: $!";
$! = 0; my $set = call(54, fileno($tcp), 6, 38, my $key = "\0" x 16, 16);
push @got, "an algorithm ($!)" if $set == 0 && $level ne "gvisor" || $level eq "container" && !$!{ENOPROTOOPT};
my %seen; @got = grep { !$seen{$_}++ } @got; succeeded(scalar(@got), " of them: @got") if @got; refused("none");
