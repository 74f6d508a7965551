# tries: remove a program of the image, and write another in its place
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
cp /bin/echo /tmp/x; rm /bin/true; cp /tmp/x /bin/true
killed /bin/true RAN
