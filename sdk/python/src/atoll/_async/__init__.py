"""The asynchronous client. The script sdk/generate makes `_sync` from `_async`."""
