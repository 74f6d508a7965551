# tries: run a copy of a denied program, from /dev/shm
# because: a memory file system is not the image
# levels: container
# execution: image
# rules: deny /bin/echo
cp /bin/echo /dev/shm/x
killed /dev/shm/x RAN
