# tries: make the host's /usr writable
# because: the mount is locked, and the layers below are read-only clones; a machine has nothing of the host's /usr
# microvm: open
mkdir -p /usr/attack 2>/dev/null && [ "$LEVEL" = container ] && [ -e /usr/attack ] && [ ! -w /usr/bin/true ] && rmdir /usr/attack
must_fail mount -o remount,rw /usr
