# tries: leave cgroups so deep and many that removal fails
# because: depth and number are limited by the kernel
# levels: container
d=/sys/fs/cgroup; n=0; while [ $n -lt 40 ] && mkdir "$d/x" 2>/dev/null; do d=$d/x; n=$((n+1)); done; [ $n -ge 40 ] && succeeded "40 deep"; held "$n deep"
