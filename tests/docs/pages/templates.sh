# serve: --microvm-dir /var/cache/atoll-tests/tested-machines
# replace: atoll template show warm = saved warm; atoll template show warm
# Where the processor is emulated a start takes longer than a minute.
# replace: --ready-port 8000 = --ready-port 8000 --ready-timeout 10m
# replace: -f ID = -f $id
atoll image pull python:3.12-slim
atoll image pull debian
mkdir service
printf 'FROM host\n\n\n\n\n\nADD files.tar.gz /srv\n' >service/Dockerfile
printf 'FROM host\n' >Dockerfile
echo a-token-of-a-test >token.txt
# In place of Docker: the page only saves an image with it, and that image is there already.
docker() { cat image.tar; }
# Waits until the server has saved the memory of a template, which it does in the background.
saved() {
  local state=saving
  while [ "$state" = saving ]; do
    sleep 0.5
    state=$(atoll template show "$1" | jq -r .memory.state)
  done
  [ "$state" = saved ]
}
# A build that waits for its files.
id=$(curl -s "$ATOLL_URL/v1/builds" -H "Authorization: Bearer $ATOLL_API_KEY" -H 'content-type: application/json' \
  -d '{"name": "waiting", "dockerfile": "FROM host\nCOPY . /app"}' | jq -r .id)
