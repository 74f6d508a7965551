#!/bin/bash
# gVisor, as Debian packages it, on a stock host. Runs inside: gvisor.sh
. "$(dirname "$0")/prelude.sh"

says "doctor on gVisor" "$(status_of gvisor | grep -c '^ok$\|^limited$')" 1
image=busybox
small_image
level=(--isolation gvisor --image busybox)
atoll create --name box "${level[@]}" >/dev/null
says "its level" "$(field box isolation)" gvisor
says "its kernel" "$(atoll exec box -- dmesg | grep -c gVisor)" 1
begin_counting
says "output and code" "$(atoll exec box -- sh -c 'echo out; exit 7'; echo $?)" $'out\n7'
says "standard input" "$(seq 1000 | atoll exec -i box -- sh -c 'sort -rn | head -n 1')" 1000
step "doctor, create, exec"
atoll pause box >/dev/null
says "frozen" "$(field box state)" paused
goes_on "freezing"
kill_server
goes_on "kill -9"
atoll fork --name twin box >/dev/null
says "a fork" "$(atoll exec twin -- cat /home/user/file)" kept
atoll pause --mode filesystem twin >/dev/null
says "woken" "$(atoll exec twin -- cat /home/user/file)" kept
atoll rm twin >/dev/null
step "fork, hibernation"
atoll create --name small --memory 64MiB "${level[@]}" >/dev/null
says "memory" "$(code_of atoll exec small -- sh -c 'head -c 314572800 /dev/zero | tail')" 137
says "it lives on" "$(atoll exec small -- echo alive)" alive
atoll rm small >/dev/null
step "memory is limited"
world_outside
network "${level[@]}"
nothing_left
echo "the whole story"
