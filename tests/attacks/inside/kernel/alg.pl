# tries: have the kernel encrypt by a socket (AF_ALG; CVE-2026-31431: Copy Fail)
# because: the family is not let through; gVisor has none, and a machine's kernel is its own
# gvisor: refused
# microvm: open
socket(my $s, 38, 5, 0) or refused("AF_ALG: $!");
my $address = pack("S a14 L L a64", 38, "aead", 0, 0, "authencesn(hmac(sha256),cbc(aes))"); bind($s, $address) or succeeded("a socket; bind: $!"); succeeded("an algorithm");
