# tries: have a program of the image start a copy (env, nice, timeout, xargs)
# because: the program that is started is asked, not who starts it
# levels: container
# execution: image
cp /bin/echo /tmp/x
for by in "env" "nice" "timeout 9" "nohup" "setsid -w"; do out=$($by /tmp/x RAN 2>/dev/null); case "$out" in *RAN*) succeeded "$by";; esac; done
out=$(echo RAN | xargs /tmp/x 2>&1); case "$out" in *RAN) succeeded xargs;; esac
killed /tmp/x RAN
