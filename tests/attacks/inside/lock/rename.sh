# tries: run a program of the image under another name, having moved it
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
mv /bin/echo /bin/moved
killed /bin/moved RAN
