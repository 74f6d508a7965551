# tries: run a copy of a program by way of /proc/self/root
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
killed /proc/self/root/tmp/x RAN
