# tries: open a packet socket (CVE-2020-14386)
# because: the family is not let through; a machine's packets end at the gateway
# microvm: open
# gvisor: refused or held
socket(my $s, 17, 3, 768) or refused("packet: $!"); succeeded("packet");
