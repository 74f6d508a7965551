# tries: change a program that others run, too
# because: layers are read-only; what is written lies in the sandbox's own disk
f=/usr/bin/true; ( echo broken > $f ) 2>/dev/null || refused "read-only"; held "a copy of its own; the neighbour's and the host's are looked at after each attack"
