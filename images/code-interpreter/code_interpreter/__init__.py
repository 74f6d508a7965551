"""Jupyter kernels behind the HTTP API of E2B's code interpreter. It runs inside a sandbox, on port 49999."""
