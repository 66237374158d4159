"""Frames from files, caches and servers: everything that touches a disk or a socket."""
