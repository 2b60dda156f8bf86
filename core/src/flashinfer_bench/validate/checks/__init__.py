"""The checks, one file each.

A check of files takes the contents of a dataset and yields findings. A check of records is shown
the workloads and traces of one file, and combines what it has found in all of them at the end; see
`RecordCheck`.
"""
