# Sets of clients: functions that the scripts tests/*/clients source. Each set is installed once, in a directory of its
# own outside the repository, and used as it is from then on.
#
# A script that sources this defines `make_set NAME`, which installs into the directory $new, and calls
#
#   sets GROUP NAME "NAMES OF fast" "NAMES OF all"      prints the directory of NAME, or installs those of `fast` or `all`

of_all=${XDG_CACHE_HOME:-$HOME/.cache}/atoll-tests
python=${PYTHON:-python3}

# Installs packages of PyPI with uv, in a tenth of pip's time, with the certificates, index and directories set for pip.
uv() {
  local version=0.13.9
  local place=$of_all/uv-$version
  if [ ! -x "$place/uv" ]; then
    mkdir -p "$place.$$" "$place"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$place.$$" "uv==$version" >&2
    python3 -m zipfile -e "$place.$$"/uv-*.whl "$place.$$"
    install -m 755 "$place.$$/uv-$version.data/scripts/uv" "$place/uv.$$"
    mv "$place/uv.$$" "$place/uv"
    rm -r "$place.$$"
  fi
  local settings=(UV_CACHE_DIR="$of_all/uv" UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never)
  [ -z "${PIP_CERT:-}" ] || settings+=(SSL_CERT_FILE="$PIP_CERT")
  [ -z "${PIP_INDEX_URL:-}" ] || settings+=(UV_DEFAULT_INDEX="$PIP_INDEX_URL")
  # pip ignores a directory that does not exist.
  [ ! -d "${PIP_FIND_LINKS:-}" ] || settings+=(UV_FIND_LINKS="$PIP_FIND_LINKS")
  env "${settings[@]}" "$place/uv" --quiet "$@" >&2
}

# Makes a virtual environment with these packages.
python_env() {
  "$python" -m venv --without-pip "$new"
  uv pip install --python "$new/bin/python" "$@"
}

# Installs packages of npm.
node_env() {
  mkdir -p "$new"
  printf '{"private": true, "type": "module"}\n' >"$new/package.json"
  (cd "$new" && npm install --silent --no-audit --no-fund "$@" >&2)
}

one_set() {
  local dir=$1 new=$1.new
  mkdir -p "$(dirname "$dir")"
  exec 9>"$dir.lock"
  flock 9
  if [ ! -e "$dir/complete" ]; then
    rm -rf "$dir" "$new"
    make_set "$2"
    # Programs in a virtual environment contain its path, so the new directory's path is replaced by the final one.
    if [ -d "$new/bin" ]; then
      { grep -lI -- "$new" $(find "$new/bin" -type f) "$new/pyvenv.cfg" || true; } | xargs -r sed -i "s|$new|$dir|g"
    fi
    touch "$new/complete"
    mv "$new" "$dir"
  fi
  exec 9>&-
}

sets() {
  local group=$1 name=$2 names=$2
  case $name in
    fast) names=$3 ;;
    all) names=$4 ;;
  esac
  for name in $names; do one_set "${cache:-$of_all}/$group/$name" "$name"; done
  [ "$2" = fast ] || [ "$2" = all ] || echo "${cache:-$of_all}/$group/$2"
}

# Reports an unknown set, and exits.
no_set() {
  echo "no set '$1'" >&2
  exit 2
}
