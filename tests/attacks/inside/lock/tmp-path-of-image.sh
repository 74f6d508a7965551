# tries: run a program by a search path of its own
# because: a search path is nothing; the file is asked
# levels: container
# execution: image
mkdir /tmp/p; cp /bin/echo /tmp/p/ls
PATH=/tmp/p:$PATH; killed ls RAN
