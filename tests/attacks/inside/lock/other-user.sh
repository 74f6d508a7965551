# tries: run a copy of a program as another user
# because: the host's kernel kills it before its first instruction, whoever asks
# levels: container
# execution: image
cp /bin/echo /tmp/x
chmod 755 /tmp/x
out=$(perl -e '$( = $) = "1000 1000"; $< = $> = 1000; exec "/tmp/x", "RAN"' 2>&1); code=$?
judge $code "$out"
