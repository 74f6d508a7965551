# tries: load a library that was written inside into a program of the image (LD_PRELOAD)
# because: by design: what a program that may run loads is its own matter, as with an interpreter
# levels: container
# execution: image
# must: open
cp -L /lib/x86_64-linux-gnu/libm.so.6 /tmp/p.so
LD_PRELOAD=/tmp/p.so cat /proc/self/maps | grep -q 'r-xp.*/tmp/p.so' && succeeded "its code is mapped"; refused "it is not loaded"
