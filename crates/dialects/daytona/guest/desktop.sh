# Runs and drives the desktop of a sandbox: desktop.sh WHAT ARGUMENT…
#
# Exit code 100: the image lacks a program that this needs; 101: the desktop does not run. The desktop is the X server,
# and those programs of a session and of a viewer that the image has. Each is a process of its own, whose number and
# output are in a directory.
export DISPLAY=:0
dir=/tmp/.desktop-$(id -u)
all='xvfb xfce4 x11vnc novnc'

need() {
  for program; do
    command -v "$program" >/dev/null 2>&1 || { echo "the image has no $program" >&2; exit 100; }
  done
}
# The same number may belong to another process by now: the time when it began tells them apart.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }
pid() {
  { read -r number start <"$dir/$1.pid"; } 2>/dev/null && [ "$(began "$number")" = "$start" ] && echo "$number"
}
program() {
  case $1 in xvfb) echo Xvfb ;; xfce4) echo xfce4-session ;; x11vnc) echo x11vnc ;; novnc) echo websockify ;; esac
}
begin() {
  name=$1
  command -v "$(program "$name")" >/dev/null 2>&1 || return 0
  [ -z "$(pid "$name")" ] || return 0
  case $name in
    xvfb) set -- Xvfb :0 -screen 0 "${RESOLUTION:-1024x768}x24" -ac -noreset -nolisten tcp ;;
    xfce4) set -- dbus-launch --exit-with-session xfce4-session ;;
    x11vnc) set -- x11vnc -display :0 -forever -shared -nopw -localhost -quiet ;;
    novnc) set -- websockify --web /usr/share/novnc 6080 localhost:5900 ;;
  esac
  setsid "$@" >"$dir/$name.log" 2>"$dir/$name.err" </dev/null &
  echo "$! $(began $!)" >"$dir/$name.pid"
}
end() {
  number=$(pid "$1")
  [ -z "$number" ] || kill -TERM "-$number" 2>/dev/null || kill -TERM "$number" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ -n "$(pid "$1")" ] || break
    sleep 0.1
  done
  [ -z "$(pid "$1")" ] || kill -KILL "-$number" 2>/dev/null
  rm -f "$dir/$1.pid"
}
shows() { xdotool getdisplaygeometry 2>/dev/null; }
runs() {
  need xdotool
  shows >/dev/null || { echo 'the desktop does not run: start it first' >&2; exit 101; }
}
status() {
  for name in $all; do
    if command -v "$(program "$name")" >/dev/null 2>&1; then echo "$name $(pid "$name")"; fi
  done
}

what=$1
shift
case $what in
  start)
    need Xvfb xdotool
    mkdir -p -m 700 "$dir" && [ -O "$dir" ] || exit 1
    begin xvfb
    tries=0
    until shows >/dev/null; do
      tries=$((tries + 1))
      if [ "$tries" -gt 100 ] || [ -z "$(pid xvfb)" ]; then
        echo "the X server does not start: $(tail -c 500 "$dir/xvfb.err")" >&2
        exit 1
      fi
      sleep 0.1
    done
    for name in xfce4 x11vnc novnc; do begin "$name"; done
    status
    ;;
  stop)
    need Xvfb
    for name in novnc x11vnc xfce4 xvfb; do end "$name"; done
    status
    ;;
  restart)
    need "$(program "$1")"
    end "$1"
    begin "$1"
    ;;
  status)
    need Xvfb
    status
    ;;
  log) tail -c 1000000 "$dir/$1.$2" 2>/dev/null || true ;;
  xdotool)
    runs
    exec xdotool "$@"
    ;;
  windows)
    runs
    active=$(xdotool getactivewindow 2>/dev/null)
    xdotool search --onlyvisible --name '.*' 2>/dev/null | head -n 1000 | while read -r id; do
      geometry=$(xdotool getwindowgeometry --shell "$id" 2>/dev/null) || continue
      eval "$(echo "$geometry" | grep -E '^(X|Y|WIDTH|HEIGHT)=-?[0-9]+$')"
      title=$(xdotool getwindowname "$id" 2>/dev/null | tr '\n\r' '  ' | head -c 1000)
      echo "$id $X $Y $WIDTH $HEIGHT $([ "$id" = "$active" ] && echo 1 || echo 0) $title"
    done
    ;;
  screenshot)
    runs
    need scrot base64
    # $1: suffix of the file, $2: quality, $3: percent of the size, and then options.
    suffix=$1 quality=$2 percent=$3
    shift 3
    pictures=$(mktemp -d) || exit 1
    trap 'rm -rf "$pictures"' EXIT
    xdotool getmouselocation --shell
    if [ "$percent" = 100 ]; then
      scrot -z -q "$quality" "$@" "$pictures/whole.$suffix" && base64 -w 0 "$pictures/whole.$suffix"
    else
      scrot -z -q "$quality" -t "$percent" "$@" "$pictures/whole.$suffix" && base64 -w 0 "$pictures/whole-thumb.$suffix"
    fi
    ;;
esac
