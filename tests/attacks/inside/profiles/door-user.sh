# tries: go through the door as another user
# because: the kernel knows the profile of a process, whoever its user is
# levels: container
# profile: tool
killed perl -e '$< = $> = 1000; exec "/.atoll/profiles/agent", "--", "/bin/echo", "RAN"'
