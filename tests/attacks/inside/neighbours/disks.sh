# tries: see the disks of neighbours
# because: /sys/block, /proc/diskstats and /proc/partitions are empty inside
# microvm: held
n=$(cat /proc/diskstats /proc/partitions 2>/dev/null | grep -c "loop"); s=$(ls /sys/block 2>/dev/null | grep -c loop); [ "$LEVEL" != container ] || [ "$n$s" = 00 ] || succeeded "$n $s"; held "none of others"
