"""Stand-ins for packages that few scripts need, a folder each.

They import the rehearsal; the rehearsal finds them by looking through this folder (`stand_ins.packages`).
Each names its owner, who keeps it working; one without an owner may be removed.
"""
