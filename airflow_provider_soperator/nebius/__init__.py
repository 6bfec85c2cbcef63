"""The Nebius API as capacity needs it: an SDK from a connection, capacity blocks, node groups and their sizes.

All but ``settings``, ``errors``, ``calls`` and ``sizes`` import the SDK, so they are imported where a connection is
made: DAG files are parsed all day long.
"""
