# replace: verify SANDBOX --dir COPY/trace --key KEY --head HEAD = verify $web --dir $DATA/trace --key ${kept[0]} --head ${kept[1]}
# replace: SANDBOX = web
web=$(atoll create --name web --json | jq -r .id)
atoll exec web -- ls /
# The server signs the last events within seconds.
until atoll trace verify web --json | jq -e .head >/dev/null; do sleep 0.5; done
mapfile -t kept < <(atoll trace verify web --json | jq -r '.key, .head')
