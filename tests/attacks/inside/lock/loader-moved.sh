# tries: give the dynamic loader another name, and have it run a copy of a program
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
cp /bin/echo /tmp/x
l=$(readlink -f /lib64/ld-linux-x86-64.so.2)
ln $l ${l%/*}/harmless || held "no link"
killed ${l%/*}/harmless /tmp/x RAN
