# tries: run a copy of a program from a user namespace of its own
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
out=$(unshare --user --map-root-user /tmp/x RAN 2>&1); code=$?
case "$out" in *unshare*) refused "$out";; esac
judge $code "$out"
