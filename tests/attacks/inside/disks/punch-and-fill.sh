# tries: make the host's disk grow without end by writing and deleting
# because: what is freed inside is given back, and its limit is that of its file system
for i in 1 2 3; do head -c 32M /dev/zero > /tmp/f; rm /tmp/f; done; held "within its limit"
