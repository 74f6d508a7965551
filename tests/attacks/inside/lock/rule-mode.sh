# tries: make a denied program another by changing its mode
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# rules: deny /bin/echo
# image: layers
chmod 4755 /bin/echo
killed /bin/echo RAN
