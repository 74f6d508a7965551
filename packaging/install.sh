#!/bin/sh
# Installs Atoll @VERSION@ from the files beside this one, after it has verified them. As root:
#
#   install.sh [--prefix DIR] [--service] [--key FILE]   into DIR/bin, DIR/lib/atoll, DIR/share [default: /usr/local]
#   install.sh --uninstall [--prefix DIR]                takes that away again; what the server keeps stays
#
# --service also starts the server with systemd, now and at every boot. --key names the public key, PEM, that must have
# signed, where you have it from elsewhere; otherwise it is the one below.
set -eu
umask 022
version=@VERSION@
public_key=@PUBLIC_KEY@
prefix=/usr/local service='' uninstall='' key=''
fail() {
  printf 'install.sh: %s\n' "$1" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --key) [ $# -ge 2 ] || fail "$1 needs a value" ;;
  esac
  case $1 in
    --prefix) prefix=${2%/} && shift ;;
    --key) key=$2 && shift ;;
    --service) service=yes ;;
    --uninstall) uninstall=yes ;;
    *) fail "what is '$1'? --prefix DIR, --service, --key FILE or --uninstall" ;;
  esac
  shift
done
case $prefix in
  *[!A-Za-z0-9._/+-]*) fail "--prefix may have letters, digits and . _ / + - only: it is written into the service's unit" ;;
  /*) ;;
  *) fail "--prefix must be a whole path" ;;
esac
list=$prefix/lib/atoll/files

if [ -n "$uninstall" ]; then
  [ -e "$list" ] || fail "nothing was installed into $prefix by this script"
  if [ -d /run/systemd/system ] && [ -e "$prefix/lib/systemd/system/atoll.service" ]; then
    systemctl disable --now --quiet atoll.service 2>/dev/null || true
  fi
  while read -r file; do rm -f "$prefix/$file"; done <"$list"
  rm -f "$list"
  rmdir "$prefix/lib/atoll" 2>/dev/null || true
  [ ! -d /run/systemd/system ] || systemctl daemon-reload
  echo "removed; 'atoll purge' would have removed /var/lib/atoll and ended its sandboxes: they are as they were"
  exit 0
fi

machine=$(uname -m)
name=atoll-$version-linux-$machine
here=$(cd "$(dirname "$0")" && pwd)
[ -e "$here/$name.tar.gz" ] || fail "$name.tar.gz is not beside this script: is it for another machine than $machine?"
command -v openssl >/dev/null || fail "openssl is missing: it verifies the signature"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Verifies copies in a private directory, so that no other user can change them after the check.
for file in "$name.tar.gz" SHA256SUMS SHA256SUMS.sig; do
  cp "$here/$file" "$work/" 2>/dev/null || fail "$file is not beside this script"
done
if [ -n "$key" ]; then
  cp "$key" "$work/key.pem" || fail "the key $key cannot be read"
else
  printf -- '-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n' "$public_key" >"$work/key.pem"
fi
cd "$work"
openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig >/dev/null 2>&1 ||
  fail "SHA256SUMS is not signed with the right key: nothing was installed"
awk -v name="$name.tar.gz" '$2 == name' SHA256SUMS >sum
[ "$(wc -l <sum)" = 1 ] || fail "SHA256SUMS does not name $name.tar.gz once: nothing was installed"
sha256sum --check --status sum || fail "$name.tar.gz is not what was signed: nothing was installed"

tar -xzf "$name.tar.gz" --no-same-owner
cd "$name"
lib/atoll/atoll --version >/dev/null 2>error || fail "the program does not run here: $(head -n 1 error)"
rm -f error
mkdir -p "$prefix/lib/atoll" || fail "$prefix cannot be written: run as root"
find bin lib share -type f | sort >files
while read -r file; do
  mkdir -p "$prefix/$(dirname "$file")"
  # Replaces a program that may be running; does not write to it.
  new=$prefix/$file.new
  case $file in
    bin/atoll | lib/atoll/client-config | lib/systemd/*) sed "s|@PREFIX@|$prefix|g" "$file" >"$new" ;;
    *) cp "$file" "$new" ;;
  esac
  chmod "$(stat -c %a "$file")" "$new"
  mv -f "$new" "$prefix/$file"
done <files
cp files "$list"
echo "installed $("$prefix/bin/atoll" --version) into $prefix"

if [ -n "$service" ]; then
  [ -d /run/systemd/system ] || fail "--service needs systemd"
  [ -e /etc/default/atoll ] || install -D -m 640 default /etc/default/atoll
  [ "$prefix" = /usr/local ] || ln -sf "$prefix/lib/systemd/system/atoll.service" /etc/systemd/system/atoll.service
  systemd-sysusers "$prefix/lib/sysusers.d/atoll.conf"
  systemctl daemon-reload
  systemctl enable --quiet atoll.service
  systemctl restart atoll.service
  echo "the service runs: 'atoll run -- uname -a' as root, or as a member of the group 'atoll'"
fi
