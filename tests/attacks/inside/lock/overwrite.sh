# tries: overwrite a program of the image
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
cat /bin/echo > /bin/true
killed /bin/true RAN
