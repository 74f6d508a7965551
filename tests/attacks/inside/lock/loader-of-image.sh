# tries: have the dynamic loader run a program, with a library of its own
# because: a dynamic loader may not run as a program
# levels: container
# execution: image
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
killed $l --preload /tmp/x.so /bin/echo RAN
