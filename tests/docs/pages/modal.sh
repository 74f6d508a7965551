# serve: --tls --domain boxes.test
# replace: http://HOST:4600 = $ATOLL_URL
