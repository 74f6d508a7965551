# tries: have the dynamic loader run a copy of a program
# because: a dynamic loader may not run as a program
# levels: container
# execution: image
cp /bin/echo /tmp/x
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
killed $l /tmp/x RAN
