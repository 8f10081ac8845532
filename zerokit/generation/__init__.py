"""Generation under ZeRO: prompts in, completions out, on any number of ranks, without a hang.

``options`` reads the command line and ``sampling`` the part of it that is transformers'
``GenerationConfig``; ``prompts``, ``model`` and ``ds_config`` find whatever is wrong before anything is
loaded; ``batches`` deals the prompts to the ranks, ``engine`` generates, ``output`` writes; ``main``
strings them together.
"""
