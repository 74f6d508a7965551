# tries: append to a program of the image
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
echo x >> /bin/echo
killed /bin/echo RAN
