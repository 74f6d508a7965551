# tries: have a copy of the dynamic loader run a copy of a program
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
cp $l /tmp/l
killed /tmp/l /tmp/x RAN
