atoll create --name web
atoll exec web -- sh -c 'mkdir -p /work && echo report > /work/report.pdf'
for port in 3000 5432; do atoll exec -d web -- python3 -m http.server --bind 127.0.0.1 $port; done
