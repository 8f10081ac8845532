"""The tool that makes ``zerokit/config/versions.json`` from the sources of DeepSpeed's releases.

Run ``python -m tests.config.surface.extract --help`` to make the file again, as for a new release.
"""
