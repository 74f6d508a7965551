# tries: mount a file system of its own over the root's
# because: mounts belong to the host's user namespace, or to a kernel of its own
# gvisor: open
# microvm: open
must_fail mount -t tmpfs none /mnt
