# tries: mount a second /proc, without what is masked in the first
# because: as above; the processes in it are the sandbox's own
# gvisor: open
# microvm: open
must_fail mount -t proc none /mnt
