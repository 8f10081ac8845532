"""The tool that makes ``zerokit/releases/keys.json`` from the sources of DeepSpeed's releases.

Run ``python -m tools.deepspeed_surface.extract --help`` to make the file again, as for a new release.
"""
