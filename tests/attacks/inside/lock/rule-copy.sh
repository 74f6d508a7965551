# tries: run a copy of a denied program
# because: with `image` a copy does not run, whatever rules say
# levels: container
# execution: image
# rules: deny /bin/echo
cp /bin/echo /tmp/x
killed /tmp/x RAN
