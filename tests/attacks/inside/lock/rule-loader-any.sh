# tries: have the dynamic loader run a denied program where everything may run
# because: by design: where everything may run the loader reads the program as a file; use `image` with it
# levels: container
# execution: any
# rules: deny /bin/echo
# must: open
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
killed $l /bin/echo RAN
