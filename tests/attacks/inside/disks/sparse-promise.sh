# tries: write more than its disk may have
# because: its file system has an end of its own
# alone: yes
# slow: yes
f=/tmp/big; head -c 64M /dev/zero > $f || refused "full"; truncate -s 1P $f 2>/dev/null && held "a size, no room: $(du -m $f | cut -f1) MiB"; held "refused to be so large"
