# tries: run a program of the image under another name
# because: a file with a copy above the layers is not the image's
# levels: container
# execution: image
# image: layers
ln /bin/echo /bin/echo2 || held "no link"
killed /bin/echo2 RAN
