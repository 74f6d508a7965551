# tries: find shared memory, queues or semaphores of others
# because: the IPC namespace is its own
n=$(tail -n +2 /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg 2>/dev/null | grep -c "^ *[0-9]"); f=$(ls -A /dev/shm /dev/mqueue 2>/dev/null | grep -v "^/dev" | head -n 2); [ "$n" -eq 0 ] && [ -z "$f" ] || succeeded "$n $f"; held "none"
