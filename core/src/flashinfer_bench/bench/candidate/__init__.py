"""The untrusted side: the process that builds and calls one solution.

`template` is the fork server that candidates start from, `main` the way to start one without it;
both end in `session`, the loop that answers the judge. Nothing here knows the judge, its inputs'
seeds, its tolerances or the reference's outputs.
"""
