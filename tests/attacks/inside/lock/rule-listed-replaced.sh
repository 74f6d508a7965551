# tries: put another program in the place of an allowed one
# because: an allow rule means the image's file, not what lies at its path now
# levels: container
# execution: listed
# rules: deny /bin/echo, allow /usr/bin/*
# image: layers
cp /bin/echo /tmp/x; cat /tmp/x > /bin/true
killed /bin/true RAN
