# tries: have the dynamic loader run a copy of a program, called by another name
# because: a dynamic loader may not run as a program, whatever it is called
# levels: container
# execution: image
cp /bin/echo /tmp/x
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
ln -s $l /tmp/harmless
killed /tmp/harmless /tmp/x RAN
