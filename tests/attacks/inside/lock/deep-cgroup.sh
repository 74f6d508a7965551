# tries: run a copy of a program from a cgroup that lies deep
# because: the gate looks at every cgroup above
# levels: container
# execution: image
cp /bin/echo /tmp/x
d=/sys/fs/cgroup; n=0; while [ $n -lt 12 ] && mkdir "$d/x" 2>/dev/null; do d=$d/x; n=$((n+1)); done
out=$(sh -c "echo \$\$ > $d/cgroup.procs; exec /tmp/x RAN" 2>/dev/null); judge $? "$out"
