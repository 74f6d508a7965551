# Before a pod stops: it takes nothing new, and what it has may end. What still runs when the pod's time is over is lost; what
# sleeps waits on its volume.
atoll node drain "$POD_NAME" || exit 0
while :; do
  awake=$(curl -fsS "$ATOLL_URL/metrics" | awk '/^atoll_sandboxes\{state="(creating|running|pausing|resuming)"\}/ { sum += $2 } END { print sum + 0 }')
  [ "$awake" = 0 ] && exit 0
  sleep 2
done
