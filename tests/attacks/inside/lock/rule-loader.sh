# tries: have the dynamic loader run a denied program
# because: with `image` a dynamic loader may not run as a program
# levels: container
# execution: image
# rules: deny /bin/echo
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
killed $l /bin/echo RAN
