# replace: http://HOST:4600 = $ATOLL_URL
