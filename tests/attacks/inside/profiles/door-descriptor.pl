# tries: go through the door by a descriptor
# because: the kernel goes by the file, however it was opened
# levels: container
# profile: tool
open(my $door, "<", "/.atoll/profiles/agent") or die; by_descriptor(fileno $door);
