# tries: go through a copy of the door
# because: a copy is another file, which leads nowhere
# levels: container
# profile: tool
ask_file
cp /.atoll/profiles/agent /tmp/door || exit 9
asks /tmp/door -- perl /tmp/ask.pl
