"""The checks, one file each.

A check of files takes the contents of a dataset and yields findings. A check of records is an
object that is shown every workload and trace once, and asked at the end what it has to add.
"""
