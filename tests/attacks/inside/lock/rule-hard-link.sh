# tries: run a denied program under another name, by a hard link
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# rules: deny /bin/echo
# image: layers
ln /bin/echo /bin/harmless || held "no link"
killed /bin/harmless RAN
