# tries: change the mode of a program of the image, which copies it
# because: a file with a copy above the layers is not the image's: its content may be the same, which nobody checks
# levels: container
# execution: image
# image: layers
chmod 4755 /bin/echo
killed /bin/echo RAN
