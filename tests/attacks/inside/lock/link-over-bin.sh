# tries: put a directory of its own in the place of /bin
# because: names are nothing; the file that they lead to is asked
# levels: container
# execution: image
# image: layers
mkdir /tmp/b; cp /usr/bin/echo /tmp/b/echo; rm /bin 2>/dev/null && ln -s /tmp/b /bin || held "no change to /bin"
out=$(/bin/echo RAN 2>&1); judge $? "$out"
