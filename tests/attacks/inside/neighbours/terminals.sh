# tries: read and write the terminals of others
# because: devpts is an instance of its own
n=$(ls /dev/pts 2>/dev/null | grep -c "^[0-9]"); [ "$n" -eq 0 ] || succeeded "$n terminals"; held "none"
