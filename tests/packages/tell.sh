# Functions with which a story inside a Debian reports its steps; the story sources this.
step() { printf 'ok  %s\n' "$*"; }
fail() {
  printf 'NOT OK  %s\n' "$*"
  systemctl status --no-pager --full atoll.service || true
  journalctl --no-pager --unit atoll.service | tail -n "${JOURNAL_LINES:-8}" | cut -c 1-240 || true
  exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
# says WHAT SAID EXPECTED
says() { [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"; }

# Checks that the command `counting` of the sandbox `box`, which was begun first, still runs and goes on.
goes_on() {
  local before after
  says "a file after $1" "$(atoll exec box -- cat /home/user/file)" kept
  before=$(atoll logs --tail 1 box "$counting" | tail -n 1)
  for _ in $(seq 100); do
    after=$(atoll logs --tail 1 box "$counting" | tail -n 1)
    if [ "$after" -gt "$before" ]; then step "$1: the sandbox goes on"; return; fi
    sleep 0.1
  done
  fail "the command stands still after $1"
}
begin_counting() {
  counting=$(atoll exec -d box -- sh -c 'echo $$; i=0; while sleep 0.1; do i=$((i+1)); echo $i; done')
  atoll exec box -- sh -c 'echo kept >/home/user/file'
}
main_pid() { systemctl show --property MainPID --value atoll.service; }
# Waits until the service has another main process than before: another_than PID WHAT
another_than() {
  for _ in $(seq 600); do
    case $(main_pid) in 0 | "$1") ;; *) if systemctl is-active --quiet atoll.service; then return; fi ;; esac
    sleep 0.2
  done
  fail "the service does not come back after $2"
}
# Kills the server as a crash would, and waits for its restart.
kill_server() {
  local before
  before=$(main_pid)
  systemctl kill --kill-whom=main --signal=KILL atoll.service
  another_than "$before" "kill -9"
}
