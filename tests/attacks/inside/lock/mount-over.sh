# tries: mount a directory of its own over /bin
# because: no right to mount
# levels: container
# execution: image
must_fail mount --bind /tmp /usr/bin
