#!/usr/bin/env python3
"""Takes the code out of the documents, so that it is compiled and run and cannot rot.

    snippets.py list DOCUMENT            number, kind and options of each marked block, one a line
    snippets.py write DOCUMENT N FILE    writes the N-th marked block as a source file
    snippets.py tree DOCUMENT FOLDER     writes the blocks with file=PATH to FOLDER/PATH

A fenced block is marked by what follows the language in its first line:

    cpp run                              a whole program, run by the tests
    cpp body                             statements, compiled inside a function that has the names of PRELUDE
    cpp file=PATH                        a source file, for tests of its own
    sh run                               commands, run in a folder where build/ and scripts/ are to be found
    sh run simulated                     the same, where the programs were built for SimGrid
"""

import pathlib
import re
import sys

FENCE = re.compile(r"^```(\w+) ([^`\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

PRELUDE = """#include <tegula/tegula.hpp>

#include <iostream>
using namespace tegula;

[[maybe_unused]] static void snippet([[maybe_unused]] Runtime& runtime, [[maybe_unused]] Graph& g,
                                     [[maybe_unused]] Plan& plan, [[maybe_unused]] Axis batch,
                                     [[maybe_unused]] Axis hidden, [[maybe_unused]] Tensor x,
                                     [[maybe_unused]] Tensor loss) {
"""


def blocks(document):
    text = pathlib.Path(document).read_text(encoding="utf-8")
    for number, match in enumerate(FENCE.finditer(text), 1):
        yield number, match[1], match[2].split(), match[3], text.count("\n", 0, match.start()) + 2


def write(path, text):
    path = pathlib.Path(path)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return  # and nothing is compiled again
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main():
    command, document = sys.argv[1:3]
    for number, language, marks, code, line in blocks(document):
        position = f'#line {line} "{document}"\n' if language == "cpp" else ""
        if command == "list":
            print(number, language, *marks)
        elif command == "tree" and marks[0].startswith("file="):
            write(pathlib.Path(sys.argv[3]) / marks[0].removeprefix("file="), position + code)
        elif command == "write" and number == int(sys.argv[3]):
            write(sys.argv[4], PRELUDE + position + code + "}\n" if marks == ["body"] else position + code)


main()
