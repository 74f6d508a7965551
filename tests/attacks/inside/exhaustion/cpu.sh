# tries: take all processors
# slow: yes
# because: time of processors is shared out by its limit
# alone: yes
for i in 1 2 3 4 5 6 7 8; do sh -c 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done' & done; wait; held "at its share"
