"""The Nebius API as capacity needs it: its calls, capacity blocks and node groups.

``node_groups`` imports the SDK, so it is imported where a connection is made: DAG files are parsed all day long.
"""
