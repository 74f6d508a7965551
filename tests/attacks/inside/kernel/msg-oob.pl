# tries: send urgent bytes over a unix socket (MSG_OOB; CVE-2025-38236 is a fault in that code of the kernel)
# because: by design in a container: unix sockets are let through with all flags, and only a mended kernel helps; gVisor answers by sockets of its own, and a machine's kernel is its own
# container: open
# gvisor: open
# microvm: open
use Socket; socketpair(my $one, my $other, AF_UNIX, SOCK_STREAM, 0) or refused("$!");
defined send($one, "x", MSG_OOB) or refused("send: $!"); defined recv($other, my $got, 1, MSG_OOB) or refused("recv: $!"); succeeded("urgent: $got");
