# tries: find an interface other than its own
# because: its namespace has a loopback and nothing else; a machine's card ends at the gateway
n=$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | grep -v "^lo$\|^eth0$" | head -n 1); [ -z "$n" ] || succeeded "$n"; held "only its own"
