# serve: --tls --domain boxes.test
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout privkey.pem -out fullchain.pem \
  -subj /CN=boxes.example.com -addext 'subjectAltName=DNS:boxes.example.com,DNS:*.boxes.example.com' 2>&1
