#!/bin/bash
# Virtual machines on KVM, with Debian's permissions of its device and Debian's QEMU. Runs inside: kvm.sh
. "$(dirname "$0")/prelude.sh"

# On real hardware the kernel loads the module by itself.
modprobe kvm_amd
udevadm settle
says "/dev/kvm" "$(stat -c '%U:%G %a' /dev/kvm)" "root:kvm 660"
says "doctor before the set up" "$(status_of microvm)" missing
atoll setup microvm --package ./linux-image-*.deb >/var/tmp/setup 2>&1 || fail "setup microvm: $(tail -n 5 /var/tmp/setup)"
systemctl restart atoll.service
step "setup microvm"
case $(atoll doctor | awk '$1 == "microvm"') in *KVM*) ;; *) fail "doctor: $(atoll doctor | grep -A 3 '^microvm')" ;; esac
says "doctor on machines" "$(status_of microvm)" ok
image=busybox
small_image
level=(--isolation microvm --image busybox --memory 64MiB --cpu 1)
atoll create --name box "${level[@]}" >/dev/null
says "what executes it" "$(field box accelerator)" kvm
[ "$(atoll exec box -- uname -r)" != "$(uname -r)" ] || fail "it has the host's kernel"
says "filters of its process, the launcher's and QEMU's" "$(awk '/^Seccomp_filters:/ {print $2}' "/proc/$(pgrep -n -x qemu-system-x86)/status")" 2
begin_counting
says "output and code" "$(atoll exec box -- sh -c 'echo out; exit 7'; echo $?)" $'out\n7'
step "create and exec on KVM, whose device belongs to root:kvm"
boot=$(field box boot_id)
atoll pause --mode memory box >/dev/null
says "paused" "$(atoll ls | awk '$2 == "box" {print $5, $6}')" "paused (memory)"
goes_on "a pause with memory"
says "its boot" "$(field box boot_id)" "$boot"
atoll fork --memory --name twin box >/dev/null
says "what executes a fork" "$(field twin accelerator)" kvm
atoll exec twin -- sh -c 'echo twin >/home/user/file'
says "a fork with memory is of its own" "$(atoll exec box -- cat /home/user/file; atoll exec twin -- cat /home/user/file)" $'kept\ntwin'
says "its process" "$(atoll exec twin -- sh -c 'ps | grep -c "sleep 0.[1]\|i=\$((i+1))"' | tr 1-9 n)" n
atoll fork --name cold box >/dev/null
says "a fork of the disk" "$(atoll exec cold -- cat /home/user/file)" kept
atoll snapshot create --tag kept box >/dev/null
goes_on "a snapshot"
step "pause with memory, forks, a snapshot"
nothing_left
echo "the whole story"
