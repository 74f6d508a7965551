# tries: put a link in the place of its disk's own layer
# because: the layer is not within reach from inside; disks are mounted by one function, which follows no link
# levels: container gvisor
find / -xdev -maxdepth 2 \( -name upper -o -name work -o -name disk.img \) 2>/dev/null | grep -q . && succeeded "found"; held "not within reach"
