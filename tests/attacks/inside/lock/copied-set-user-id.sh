# tries: run a copy of a program that has the set-user-id bit
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
chmod 4755 /tmp/x; killed /tmp/x RAN
