# serve: --microvm-dir /var/cache/atoll-tests/tested-machines
# The SDKs of LangSmith and E2B that tests/langsmith and tests/e2b use, and the example that the page runs.
langsmith=$("$REPOSITORY/tests/langsmith/clients" py-newest)
e2b=$("$REPOSITORY/tests/e2b/clients" py-newest)
for clients in "$langsmith" "$e2b"; do
  PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$(echo "$clients"/lib/python3*/site-packages)
done
export PYTHONPATH LANGSMITH_TRACING=false
ln -s "$REPOSITORY/examples" examples
