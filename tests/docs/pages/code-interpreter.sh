# Before the blocks of docs/code-interpreter.md: a sandbox with a small interpreter, as the real one takes minutes to
# build (tests/e2b does it), and a script that plots.
atoll create --name my-box >/dev/null
atoll service add my-box interpreter --ready-port 49999 --wait -- \
  python3 -u -c "$(cat "$REPOSITORY/crates/atoll/tests/common/interpreter.py")" >/dev/null
echo "show(png='aGk=', text='<Figure size 640x480 with 1 Axes>')" >plot.py
