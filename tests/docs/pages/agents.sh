atoll create --name my-box
# The page's two programs, in the order in which they stand there.
awk '/^```python$/ { file = ++number == 1 ? "agent.py" : "server.py"; next } /^```/ { file = "" } file { print > file }' "$REPOSITORY/docs/agents.md"
atoll cp agent.py my-box:/root/agent.py
atoll cp server.py my-box:/root/server.py
