# tries: call a program of its own as an allowed one
# because: names are nothing; the file is asked
# levels: container
# execution: listed
# rules: allow /usr/bin/*
mkdir /tmp/p; cp /bin/echo /tmp/p/arch
PATH=/tmp/p:$PATH; killed arch RAN
