# The beginning of every story on a stock host: it installs the package, and checks that the service runs on a kernel
# with cgroups of version 2 alone. A story sources this; its directory holds tell.sh, the package and the other files
# that it names.
set -euo pipefail
cd "$(dirname "$0")"
. ./tell.sh
export JOURNAL_LINES=60

says "control groups of version 1" "$(findmnt -rn -t cgroup -o TARGET)" ""
says "the control groups' file system" "$(findmnt -rn -o FSTYPE /sys/fs/cgroup)" cgroup2
dpkg --install ./atoll_*.deb >/dev/null
says "the service" "$(systemctl is-active atoll.service)" active
step "$(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -r), systemd, cgroups of version 2 alone: installed, the service runs"

# The status of a check of 'atoll doctor': status_of CHECK
status_of() { atoll doctor | awk -v check="$1" '$1 == check {print $2}'; }
# One field of a sandbox: field SANDBOX NAME
field() { atoll inspect "$1" | grep -o "\"$2\": *\"[^\"]*\"" | head -n 1 | sed 's/.*: *"\(.*\)"/\1/'; }
# The code with which a command ends.
code_of() { local code=0; "$@" >/dev/null 2>&1 || code=$?; echo $code; }
# Sets options of the server's command line, and restarts the service.
serve_with() {
  sed -i "s|^SERVE_ARGS=.*|SERVE_ARGS=$*|" /etc/default/atoll
  systemctl restart atoll.service
}
# Imports an image `busybox` of one program, so that the host has no large image to prepare.
small_image() {
  local root
  root=$(mktemp -d)
  mkdir -p "$root"/{bin,etc,tmp,root,home/user,dev,proc,sys}
  cp /bin/busybox "$root/bin/"
  # Newer ones list themselves.
  for name in $(/bin/busybox --list | grep -vx busybox); do ln -s busybox "$root/bin/$name"; done
  printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
  tar -C "$root" -cf "$root.tar" .
  atoll image import "$root.tar" busybox >/dev/null
  rm -rf "$root" "$root.tar"
}

# Makes a world outside, in a network namespace of this host, with addresses that are public elsewhere: a web server and
# a DNS server.
world_outside() {
  ip netns add outside
  ip link add to-outside type veth peer name inside netns outside
  ip address add 93.184.216.1/24 dev to-outside
  ip link set to-outside up
  ip -n outside address add 93.184.216.34/24 dev inside
  ip -n outside link set inside up
  ip -n outside link set lo up
  mkdir -p /var/tmp/www
  echo from outside >/var/tmp/www/index.html
  ip netns exec outside busybox httpd -p 80 -h /var/tmp/www
  ip netns exec outside busybox httpd -p 81 -h /var/tmp/www
  ip netns exec outside python3 ./outside.py 93.184.216.34 allowed.example=93.184.216.34 refused.example=93.184.216.34 &
  serve_with --resolver 93.184.216.34:53
}

# Tests the network, which every level treats alike: network OPTIONS-OF-CREATE…
network() {
  local fetch="wget -q -T 60 -O -"
  [ "${image:-}" = busybox ] || fetch="curl -sS --fail --max-time 60"
  atoll create --name closed "$@" >/dev/null
  atoll create --name open --allow allowed.example:80 "$@" >/dev/null
  says "without egress" "$(code_of atoll exec closed -- $fetch http://93.184.216.34/ | tr -s 1-9 n)" n
  says "a name that is allowed" "$(atoll exec open -- $fetch http://allowed.example/)" "from outside"
  says "a name that is not" "$(code_of atoll exec open -- $fetch http://refused.example/ | tr -s 1-9 n)" n
  says "another port" "$(code_of atoll exec open -- $fetch http://allowed.example:81/ | tr -s 1-9 n)" n
  case $(atoll net denied open) in *refused.example*) ;; *) fail "nothing is said of what was refused" ;; esac
  atoll net deny open allowed.example >/dev/null
  says "after it was denied" "$(code_of atoll exec open -- $fetch http://allowed.example/ | tr -s 1-9 n)" n
  atoll rm closed open >/dev/null
  step "egress: off, allowed, refused by name and by port, denied meanwhile"
}

# Removes all sandboxes, and checks that nothing of them is left: processes, cgroups, mounts, disks.
nothing_left() {
  atoll rm --all --yes >/dev/null 2>&1
  says "what is left over" "$(atoll doctor --leaks)" "nothing is left over"
  says "processes in sandboxes" "$(pgrep -c -x atoll-guest || true)" 0
  step "all removed: nothing is left over"
}
