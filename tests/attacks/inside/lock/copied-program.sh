# tries: run a copy of a program, from /tmp
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
killed /tmp/x RAN
