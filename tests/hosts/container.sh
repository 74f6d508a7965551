#!/bin/bash
# Containers on a stock host: the common commands, limits, the network, kill -9. Runs inside: container.sh
. "$(dirname "$0")/prelude.sh"

seen=$(atoll doctor)
missing=$(echo "$seen" | awk '$2 == "missing" && $1 !~ /^(kvm|microvm|gvisor|memory_pause)$/ {print $1}')
says "what a container lacks here" "$missing" ""
case $seen in *v2*) ;; *) fail "doctor does not say that cgroups are of version 2" ;; esac
# A kernel before 6.5 cannot tell which programs are the image's.
case $(uname -r) in 6.1.*) witness=limited ;; *) witness=ok ;; esac
says "the kernel as a witness" "$(status_of trace_host)" $witness
step "doctor: containers lack nothing"

atoll create --name box --label on=host >/dev/null
begin_counting
says "output and code" "$(atoll exec box -- sh -c 'echo out; echo err >&2; exit 7' 2>/dev/null; echo $?)" $'out\n7'
says "standard input" "$(seq 1000 | atoll exec -i box -- sh -c 'sort -rn | head -n 1')" 1000
says "user, variable, directory" "$(atoll exec -u user -e A=b -w /tmp box -- sh -c 'echo $(id -un) $A $PWD')" "user b /tmp"
says "no such command" "$(code_of atoll exec box -- /no/such/command)" 127
says "run" "$(code_of atoll run -- sh -c 'exit 9')" 9
sleeper=$(atoll exec -d box -- sh -c 'sleep 1000 & sleep 1000')
atoll kill box "$sleeper" >/dev/null
for _ in $(seq 100); do [ "$(atoll exec box -- sh -c 'ps -eo args= | grep -c "^sleep 1000" || true')" = 0 ] && break; sleep 0.1; done
says "processes after kill" "$(atoll exec box -- sh -c 'ps -eo args= | grep -c "^sleep 1000" || true')" 0
says "a terminal" "$(script -qec 'atoll exec -t box -- sh -c "test -t 0 && tty"' /dev/null </dev/null | tr -d '\r' | grep -o '^/dev/pts/[0-9]*')" /dev/pts/0
step "exec: output, codes, input, user, directory, kill, a terminal; run"

seq 1 100000 >/var/tmp/in.txt
atoll cp /var/tmp/in.txt box:/home/user/in.txt >/dev/null
atoll cp box:/home/user/in.txt /var/tmp/out.txt >/dev/null
cmp /var/tmp/in.txt /var/tmp/out.txt
step "cp: in and out, the same bytes"

atoll pause box >/dev/null
says "frozen" "$(field box state)" paused
one=$(atoll logs --tail 1 box "$counting" | tail -n 1)
sleep 1
says "what a frozen one counts" "$(atoll logs --tail 1 box "$counting" | tail -n 1)" "$one"
atoll resume box >/dev/null
goes_on "freezing"
kill_server
goes_on "kill -9"
atoll pause box >/dev/null
kill_server
says "a frozen one after kill -9" "$(field box state)" paused
goes_on "waking after kill -9"
systemctl restart atoll.service
goes_on "a restart"

atoll fork --name twin box >/dev/null
atoll exec twin -- sh -c 'echo twin >/home/user/file'
says "a fork is of its own" "$(atoll exec box -- cat /home/user/file; atoll exec twin -- cat /home/user/file)" $'kept\ntwin'
atoll snapshot create --tag kept box >/dev/null
atoll create --name later --snapshot kept >/dev/null
says "a snapshot" "$(atoll exec later -- cat /home/user/file)" kept
atoll pause --mode filesystem later >/dev/null
says "hibernated" "$(atoll ls | awk '$2 == "later" {print $5, $6}')" "paused (filesystem)"
says "woken" "$(atoll exec later -- cat /home/user/file)" kept
number=$(atoll checkpoint box | grep -o '[0-9]*' | head -n 1)
atoll exec twin -- true
atoll volume create --size 64MiB shared >/dev/null
atoll create --name writer -v shared:/srv >/dev/null
atoll create --name reader -v shared:/srv:ro >/dev/null
atoll exec writer -- sh -c 'echo written >/srv/file'
says "a volume" "$(atoll exec reader -- cat /srv/file)" written
atoll rm writer reader later twin >/dev/null
atoll volume rm shared >/dev/null
step "fork, snapshot, hibernation, checkpoint $number, volumes"

atoll create --name small --memory 96MiB --pids 40 --cpu 0.25 --disk 64MiB >/dev/null
says "memory: code" "$(code_of atoll exec small -- sh -c 'head -c 400M /dev/zero | tail')" 137
says "memory: reason" "$(atoll ps small | grep -c 'memory' || true)" 1
says "it lives on" "$(atoll exec small -- echo alive)" alive
# The shell ends when it cannot fork again, and only then kills its children: however slow the machine is, all of
# them ran at once.
forks=$(atoll exec small -- sh -c 'trap "kill \$all" EXIT; i=0; while [ $i -lt 100 ]; do sleep 1000 & all="$all $!" i=$((i+1)); echo $i; done' 2>/dev/null | tail -n 1 || true)
[ "${forks:-0}" -gt 10 ] && [ "$forks" -lt 40 ] || fail "${forks:-no} processes where 40 are allowed"
cgroup=$(find /sys/fs/cgroup -type d -name "*$(field small id)*" | head -n 1)
[ -n "$cgroup" ] || fail "no cgroup with the sandbox's id"
says "processors" "$(find "$cgroup" -name cpu.max -exec cat {} + | sort | head -n 1)" "25000 100000"
atoll exec --timeout 3s small -- sh -c 'while :; do :; done' >/dev/null 2>&1 || true
find "$cgroup" -name cpu.stat -exec grep -h nr_throttled {} + | grep -qv ' 0$' || fail "the processors were never held back"
says "disk" "$(atoll exec small -- sh -c 'head -c 200M /dev/zero >/home/user/big 2>&1 || true; size=$(stat -c %s /home/user/big); test $size -gt 1048576 -a $size -lt 67108864 && echo held')" held
atoll update --memory 200MiB small >/dev/null
says "memory, changed" "$(find "$cgroup" -name memory.max -exec cat {} + | sort -n | grep -v max | head -n 1 | awk '{print ($1 <= 209715200 * 1.2)}')" 1
atoll metrics small >/dev/null
atoll rm small >/dev/null
step "limits: memory, processes, processors, disk; changed while it runs"

for i in $(seq 10); do atoll create --name "many$i" >/dev/null & pids[i]=$!; done
for i in $(seq 10); do wait "${pids[i]}" || fail "the creation of many$i"; done
for i in $(seq 10); do says "many$i" "$(atoll exec "many$i" -- hostname)" "many$i"; done
step "ten at once"

world_outside
network

# The kernel of the host tells which programs start and which connect.
atoll create --name told --allow allowed.example:80 >/dev/null
exec=$(atoll exec -d told -- sh -c 'exec curl -sS --fail --max-time 60 http://allowed.example/')
for _ in $(seq 100); do atoll trace told --json | grep '"connect"' | grep -q '"host"' && break; sleep 0.1; done
atoll trace told --json >/var/tmp/trace.jsonl
for kind in process_started connect; do
  grep "\"$kind\"" /var/tmp/trace.jsonl | grep '"host"' | grep -q "$exec" || fail "the kernel told no $kind of $exec: $(tail -n 5 /var/tmp/trace.jsonl)"
done
step "the kernel as a witness: what runs, what connects, in which exec"
from=(--allow-from '/usr/bin/curl=allowed.example:80')
if [ $witness = ok ]; then
  atoll create --name bound "${from[@]}" >/dev/null
  says "the program that may" "$(atoll exec bound -- curl -sS --fail --max-time 60 http://allowed.example/)" "from outside"
  says "another that may not" "$(code_of atoll exec bound -- python3 -c 'import urllib.request as u; u.urlopen("http://allowed.example/", timeout=60)' | tr -s 1-9 n)" n
  atoll update bound --execution image >/dev/null
  atoll exec bound -- cp /usr/bin/true /tmp/mine
  says "a program that was written inside" "$(code_of atoll exec bound -- sh -c '/tmp/mine; exit $?')" 137
  says "one of the image" "$(code_of atoll exec bound -- true)" 0
  atoll rm bound >/dev/null
  step "which program connects; the lock"
else
  for asked in '--execution image' "${from[*]}"; do
    case $(atoll --json create --name bound $asked 2>&1) in *unenforceable*) ;; *) fail "$asked is not refused" ;; esac
  done
  step "which program connects, and the lock: refused"
fi
atoll rm told >/dev/null

nothing_left
echo "the whole story"
