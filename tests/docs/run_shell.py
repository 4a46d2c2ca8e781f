#!/usr/bin/env python3
"""Runs the commands of a document as its reader would: in a folder that has build/ and scripts/, both the real ones.

    run_shell.py COMMANDS SOURCE_ROOT BUILD_ROOT
"""

import os
import pathlib
import subprocess
import sys
import tempfile

commands, source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:4])  # meson's are relative
with tempfile.TemporaryDirectory(prefix="tegula-docs-") as folder:
    for name in ("scripts", "apps", "docs"):
        (pathlib.Path(folder) / name).symlink_to(source / name)
    (pathlib.Path(folder) / "build").symlink_to(build)
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    sys.exit(subprocess.run(["bash", "-euo", "pipefail", "-x", commands], cwd=folder, env=environment,
                            check=False).returncode)
