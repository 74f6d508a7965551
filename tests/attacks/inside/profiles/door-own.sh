# tries: go through the door to the profile that it is in already
# because: a profile leads only further down, never to itself
# levels: container
# profile: tool
killed /.atoll/profiles/tool -- sh -c 'echo RAN'
