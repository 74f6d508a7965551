# tries: run a denied program under another name, having moved it
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# rules: deny /bin/echo
# image: layers
mv /bin/echo /bin/harmless
killed /bin/harmless RAN
