# tries: put a denied program in the place of another
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# rules: deny /bin/echo
# image: layers
mv /bin/echo /tmp/e; mv /bin/true /tmp/t; mv /tmp/e /bin/true
killed /bin/true RAN
