# tries: name a file of the operator's by dots above the root
# because: above the root is the root
cat "/../../../../../..$BAIT" 2>/dev/null && succeeded bait; held "nothing above"
