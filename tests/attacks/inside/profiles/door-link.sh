# tries: go through the door by a link
# because: the kernel goes by the file, whatever it is called
# levels: container
# profile: tool
ln -s /.atoll/profiles/agent /tmp/door
killed /tmp/door -- sh -c 'echo RAN'
