# tries: climb out of a chroot of its own to the host's root
# because: the sandbox's root is at the top of its mount namespace; what it covers is empty, and no path leads there
mkdir "/tmp/c"; chroot "/tmp/c" or refused("chroot: $!");
chdir ".." for 1 .. 60; chroot "." or refused("chroot: $!");
open my $f, "<", $ENV{BAIT} or held("above the root is the root");
print <$f>; succeeded("the host's root");
