#!/usr/bin/env python3
"""unpack_nvcc.py FOLDER WHEEL ...: the toolkit that the wheels of the CUDA compiler hold together (bin, nvvm, include, lib)."""
import pathlib
import shutil
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
unfinished = folder.with_name(folder.name + ".unfinished")
shutil.rmtree(unfinished, ignore_errors=True)
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parts = pathlib.PurePosixPath(name).parts
            # nvidia/cu13/bin/nvcc
            if parts[0] != "nvidia" or len(parts) < 4 or name.endswith("/") or ".." in parts:
                continue
            target = unfinished.joinpath(*parts[2:])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            if "bin" in parts:
                target.chmod(0o755)
if not (unfinished / "bin" / "nvcc").exists():
    sys.exit("the wheels hold no bin/nvcc")
shutil.rmtree(folder, ignore_errors=True)
unfinished.rename(folder)
