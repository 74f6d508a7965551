# tries: open a raw socket
# because: it wants a capability over the network namespace; a machine's packets end at the gateway
# microvm: open
# gvisor: refused or held
socket(my $s, 2, 3, 255) or refused("raw: $!"); succeeded("raw");
