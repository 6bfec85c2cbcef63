from setuptools import setup  # all metadata is in pyproject.toml

setup()
