# tries: run a denied program by a link
# because: a rule means the image's file, under whatever name it runs
# levels: container
# execution: any
# rules: deny /bin/echo
ln -s /bin/echo /tmp/harmless
killed /tmp/harmless RAN
