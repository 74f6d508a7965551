#!/bin/bash
# The program's own black-box tests on a stock host, those that need nothing but the program. Runs inside: tests.sh
. "$(dirname "$0")/prelude.sh"
# The tests start servers of their own.
systemctl stop atoll.service
mkdir -p /var/tmp/program/deps
cp program/atoll /var/tmp/program/
cp program/deps/* /var/tmp/program/deps/
while read -r test; do
  case $test in '' | '#'*) continue ;; esac
  began=$SECONDS
  if /var/tmp/program/deps/blackbox --exact "$test" >/var/tmp/test.log 2>&1 && grep -q '^test result: ok. 1 passed' /var/tmp/test.log; then
    step "$test ($((SECONDS - began)) s)"
  else
    # The server's log stands between what failed and the end.
    grep -m 1 -A 30 panicked /var/tmp/test.log || true
    tail -n 20 /var/tmp/test.log
    fail "$test"
  fi
done <tests.list
nothing_left_of_tests() { find /sys/fs/cgroup -type d -name 'atoll-*' | grep -v system.slice || true; }
says "cgroups after all" "$(nothing_left_of_tests)" ""
echo "the whole story"
