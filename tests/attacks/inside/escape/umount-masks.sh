# tries: uncover what is masked in /proc and /sys
# because: unmounting wants a capability over the mount namespace; what a machine uncovers is its own kernel's
# microvm: open
for place in /proc /sys /dev/shm; do umount -l $place 2>/dev/null && succeeded $place; done; refused "no place let go"
