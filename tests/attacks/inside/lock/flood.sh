# tries: have so many programs refused that one slips through, or that the refusals are not told
# because: each is decided in the kernel, by itself; what is not told is counted
# levels: container
# execution: image
# slow: yes
cp /bin/echo /tmp/x
i=0; while [ $i -lt 1500 ]; do i=$((i+1)); out=$(/tmp/x RAN 2>/dev/null); case "$out" in *RAN*) succeeded "number $i";; esac; done
killed /tmp/x RAN
