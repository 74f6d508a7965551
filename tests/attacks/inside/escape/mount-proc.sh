# tries: mount a second /proc, without what is masked in the first
# because: the mount calls are not let through; the processes in it would be the sandbox's own, as in a machine
# microvm: open
must_fail mount -t proc none /mnt
