"""The parts of the Nebius API that capacity needs: calls, capacity blocks and node groups.

``node_groups`` imports the SDK, so import it only where a connection is made, not in code that DAG files load.
"""
