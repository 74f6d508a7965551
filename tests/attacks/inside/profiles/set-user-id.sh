# tries: gain rights by a program with the set-user-id bit
# because: a process of a profile gains no rights by executing a program
# levels: container
# profile: agent
cp /usr/bin/id /tmp/id; chown 7:7 /tmp/id; chmod 6755 /tmp/id
out=$(/tmp/id -u); [ "$out" = 7 ] && succeeded "$out"; refused "uid $out"
