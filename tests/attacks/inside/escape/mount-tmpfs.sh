# tries: mount a file system of its own over the root's
# because: mounts belong to the host's user namespace; a machine mounts what is its own
# microvm: open
must_fail mount -t tmpfs none /mnt
