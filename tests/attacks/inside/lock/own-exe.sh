# tries: run a copy of a program that it made of itself (/proc/self/exe)
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cat /proc/self/exe > /tmp/x; chmod 755 /tmp/x
killed /tmp/x RAN
