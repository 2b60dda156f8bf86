"""Moving datasets and solutions: new folders, archives, imports from elsewhere, packing.

`exporting` writes an archive, `importing` reads archives and folders of any release, `packing`
turns a solution into a folder of source files and back. The rest are their parts.
"""
