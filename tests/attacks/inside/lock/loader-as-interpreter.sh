# tries: name the dynamic loader as the interpreter of a script
# because: a dynamic loader may not run as a program
# levels: container
# execution: image
cp /bin/echo /tmp/x
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
printf '#!%s /tmp/x\n' "$l" > /tmp/s; chmod 755 /tmp/s
killed /tmp/s RAN
