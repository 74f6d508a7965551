# tries: climb out of a chroot of its own to the host's root
# because: the root of the mount namespace is the sandbox's; there is nothing above it
mkdir "/tmp/c"; chroot "/tmp/c" or refused("chroot: $!");
chdir ".." for 1 .. 60; chroot "." or refused("chroot: $!");
open my $f, "<", $ENV{BAIT} or held("above the root is the root");
print <$f>; succeeded("the host's root");
