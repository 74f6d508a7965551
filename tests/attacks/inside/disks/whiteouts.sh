# tries: make an overlay's own marks, to show files of layers that were deleted
# because: such devices and attributes cannot be made inside
# levels: container gvisor
mknod /tmp/w c 0 0 2>/dev/null && [ -c /tmp/w ] && [ "$LEVEL" = container ] && held "a mark of its own, below its own names only"; refused "cannot be made"
