"""The server of a node's store: starting and stopping it, who may talk to it, and its clients."""
