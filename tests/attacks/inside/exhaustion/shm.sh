# tries: take the host's memory by files in memory
# limits: memory_bytes=268435456
# slow: yes
# because: they count as its memory, and the file system has a size
# alone: yes
head -c 1G /dev/zero > /dev/shm/x 2>/dev/null && succeeded "1 GiB"; s=$(du -m /dev/shm 2>/dev/null | cut -f1); rm -f /dev/shm/x; held "$s MiB, then no more"
