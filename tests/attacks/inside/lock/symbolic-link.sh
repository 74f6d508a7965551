# tries: run a copy of a program by a link with a name of the image's
# because: the file that a link leads to is asked
# levels: container
# execution: image
cp /bin/echo /tmp/x
ln -s /tmp/x /tmp/echo
killed /tmp/echo RAN
