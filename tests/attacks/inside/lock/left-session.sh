# tries: run a copy of a program from a session of its own, twice forked
# because: the gate goes by the cgroup, which nobody inside can leave
# levels: container
# execution: image
cp /bin/echo /tmp/x
setsid sh -c '/tmp/x RAN > /tmp/out 2>&1; echo $? > /tmp/code' &
while [ ! -s /tmp/code ]; do sleep 0.05; done
judge "$(cat /tmp/code)" "$(cat /tmp/out)"
