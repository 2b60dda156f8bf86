"""Export, import and merging of datasets, and packing of solutions.

`exporting` writes an archive, `importing` reads archives and folders of any release, `packing`
converts a solution to a folder of source files and back. The other modules are their parts.
"""
