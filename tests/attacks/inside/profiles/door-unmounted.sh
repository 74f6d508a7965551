# tries: unmount the doors
# because: the mount belongs to the host
# levels: container
# profile: tool
must_fail perl -e 'exit(syscall(166, "/.atoll", 2) == 0 ? 0 : 1)'
