# tries: go through the door from another root
# because: the kernel goes by the file, not by the path
# levels: container
# profile: tool
open(my $door, "<", "/.atoll/profiles/agent") or die; mkdir "/tmp/root"; chroot "/tmp/root" or die; by_descriptor(fileno $door);
