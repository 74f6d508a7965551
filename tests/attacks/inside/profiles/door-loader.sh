# tries: have the dynamic loader load the door
# because: what runs then is the loader, which leads nowhere
# levels: container
# profile: tool
ask_file
out=$(/lib64/ld-linux-x86-64.so.2 /.atoll/profiles/agent -- perl /tmp/ask.pl 2>&1); case "$out" in *RAN*) succeeded "$out";; esac
refused "$out"
