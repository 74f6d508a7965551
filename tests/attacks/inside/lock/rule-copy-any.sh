# tries: run a copy of a denied program where everything may run
# because: by design: where everything may run a copy is another program; use `image` with it
# levels: container
# execution: any
# rules: deny /bin/echo
# must: open
cp /bin/echo /tmp/x
killed /tmp/x RAN
