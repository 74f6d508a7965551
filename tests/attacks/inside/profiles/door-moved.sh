# tries: put another directory in the place of the doors, for agents that ask
# because: what is mounted cannot be moved from inside
# levels: container
# profile: tool
must_fail mv /.atoll /.other
