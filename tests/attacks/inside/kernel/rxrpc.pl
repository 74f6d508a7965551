# tries: open a socket of rxrpc (CVE-2026-43500: Dirty Frag)
# because: the family is not let through; gVisor has none, and a machine's kernel is its own
# gvisor: refused
# microvm: open
socket(my $s, 33, 2, 2) or refused("AF_RXRPC: $!"); succeeded("a socket");
