# A pod that is back takes sandboxes again. A hook that fails would end it: there is always the command.
for _ in $(seq 150); do
  atoll node undrain "$POD_NAME" >/dev/null 2>&1 && exit 0
  sleep 2
done
exit 0
