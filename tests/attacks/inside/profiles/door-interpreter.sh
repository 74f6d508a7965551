# tries: have a script interpreted by the door
# because: the program that runs is the door, and it is asked about
# levels: container
# profile: tool
printf '#!/.atoll/profiles/agent --\necho RAN\n' > /tmp/script; chmod +x /tmp/script
killed /tmp/script
