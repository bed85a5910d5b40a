#!/usr/bin/env python3
"""unpack_headers.py FOLDER WHEEL ...: what the wheels hold below an include/ folder, and nothing else, into FOLDER."""
import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parts = pathlib.PurePosixPath(name).parts
            if "include" not in parts or name.endswith("/") or ".." in parts:
                continue
            inside = parts[parts.index("include") + 1:]
            # The C++ library of CUDA is a thousand files, of which two are needed: nv/target and what it includes.
            if inside[0] in ("cccl", "cuda", "cub", "thrust", "nccl_device", "cooperative_groups"):
                continue
            target = folder.joinpath(*inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
