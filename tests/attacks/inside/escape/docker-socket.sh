# tries: find a socket of Docker, containerd, systemd or Atoll
# because: nothing of the host's /run is inside
found=$(find / -xdev -type s 2>/dev/null | grep -v "^/tmp\|/proc/" | head -n 3); for s in /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/systemd/private /run/dbus/system_bus_socket; do [ -S $s ] && succeeded $s; done
held "none but its own: ${found:-none}"
