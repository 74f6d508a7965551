# tries: make a program look as old as the image
# because: what counts is when the kernel says that it was changed, which nobody can set
# levels: container
# execution: image
cp /bin/echo /tmp/x
touch -d 1999-01-01 /tmp/x; touch -r /bin/echo /tmp/x
killed /tmp/x RAN
