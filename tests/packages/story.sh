#!/bin/bash
# Installs, upgrades, removes and purges the package on a host with systemd, and checks the host. Runs inside:
# story.sh OLD.deb NEW.deb
set -euo pipefail
old=$1
new=$2
. "$(dirname "$0")/tell.sh"

dpkg --install "$old" >/dev/null
says "the service after the installation" "$(systemctl is-active atoll.service)" active
says "at the next boot" "$(systemctl is-enabled atoll.service)" enabled
step "installed: the service runs"

atoll ls >/dev/null
says "a command in a sandbox" "$(atoll run -- sh -c 'echo from $(id -un) inside')" "from root inside"
says "files with keys" "$(stat -c '%U:%G %a' /etc/atoll/admin.toml /etc/atoll/client.toml | tr '\n' ' ')" "root:root 600 root:atoll 640 "
journal() { journalctl --no-pager --unit atoll.service; }
journal | grep -q 'request answered' || fail "the journal has nothing of the server"
keys=$(sed -n 's/^api_key = "\(.*\)"/\1/p' /etc/atoll/*.toml)
says "keys" "$(echo "$keys" | wc -w)" 2
says "the keys in the journal" "$(journal | grep -c -F "$keys" || true)" 0
[ ! -e /run/atoll.json ] || fail "the first key lies about"
step "root runs a command, and the key is nowhere else"

useradd --create-home member && usermod --append --groups atoll member
useradd --create-home stranger
says "a member of the group" "$(setpriv --reuid member --regid member --init-groups env HOME=/home/member atoll run -- echo member)" member
setpriv --reuid stranger --regid stranger --init-groups env HOME=/home/stranger atoll ls >/dev/null 2>&1 && fail "a stranger uses the service"
setpriv --reuid member --regid member --init-groups env HOME=/home/member atoll key ls >/dev/null 2>&1 && fail "a member administers it"
step "a member of the group uses it, nobody else does"

atoll create --name box >/dev/null
begin_counting
goes_on "its start"
systemctl restart atoll.service
goes_on "a restart"
kill_server
goes_on "kill -9"
before=$(main_pid)
sed -i 's/^SERVE_ARGS=.*/SERVE_ARGS=--listen 127.0.0.1:4711/' /etc/default/atoll
dpkg --install "$new" >/dev/null
[ "$(main_pid)" != "$before" ] || fail "the upgrade did not restart the server"
says "the package's version" "$(dpkg-query -W -f '${Version}' atoll)" "$(dpkg-deb -f "$new" Version)"
says "what was configured" "$(grep -c 4711 /etc/atoll/client.toml /etc/atoll/admin.toml /etc/default/atoll | cut -d : -f 2 | tr '\n' ' ')" "1 1 1 "
goes_on "an upgrade"

# The server, and the agent that is each sandbox's first process.
processes() { ps -eo args= | grep '^/usr/lib/atoll/\|^\(/[^ ]*\)\?atoll-guest' || true; }
says "processes of it while it runs" "$(processes | wc -l)" 2
dpkg --remove atoll >/dev/null 2>&1
says "processes after the removal" "$(processes)" ""
says "cgroups after the removal" "$(find /sys/fs/cgroup /run/cgroup -type d -name 'atoll-*' 2>/dev/null | wc -l)" 0
mounts() { awk '$5 ~ /atoll/ {print $5}' /proc/self/mountinfo; }
says "mounts after the removal" "$(mounts)" ""
[ -e /var/lib/atoll/atoll.db ] || fail "the removal took what only a purge may take"
step "removed: nothing runs, what it kept is there"

dpkg --install "$new" >/dev/null
says "the service after another installation" "$(systemctl is-active atoll.service)" active
says "the sandbox from before" "$(atoll inspect box | grep -o '"state": *"[a-z]*"' | head -n 1 | tr -d ' ')" '"state":"failed"'
[ "$(atoll logs --tail 1 box "$counting" | tail -n 1)" -gt 0 ] || fail "the output from before is gone"
step "installed again: it says what became of the sandbox, and still has its output"

dpkg --purge atoll >/dev/null 2>&1
left=$(
  find / -xdev -path /proc -prune -o -path /sys -prune -o -name '*atoll*' -print | grep -v '^/root/packages\|^/var/log/\|^/boot.log' || true
  getent group atoll || true
  processes
  mounts
  systemctl list-unit-files --no-legend 'atoll*' || true
)
says "what is left after the purge" "$left" ""
step "purged: nothing is left"
echo "the whole story"
