"""Compares our tokenizers with Hugging Face's own library, token by token: its files read by us, ours read by it.

    tests/app/tokenizers_test.py PATH/TO/gpt [NAME OF A TEST...]
"""

import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

# pylint: disable=wrong-import-position
from peers import common, token_file  # noqa: E402

common.run_with_packages()

import tokenizers  # noqa: E402
from tokenizers import decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

PROGRAM = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 240
END_OF_TEXT = "<|endoftext|>"
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def assigned(c):
    """Characters that both sides' versions of Unicode know: this Python's is older than ours."""
    return unicodedata.category(chr(c)) not in ("Cn", "Cs")


def texts():
    rng = random.Random(1)
    if shutil.which("bible") is None:
        common.die("no program `bible`; install it with scripts/packages text")
    bible = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    sources = sorted(path for folder in ("framework", "scripts", "docs") for path in (common.ROOT / folder).rglob("*")
                     if path.suffix in (".cpp", ".hpp", ".py", ".md"))
    pieces = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u0085", "\u200b", "a", "Z", "é", "e\u0301", "ß", "ſ", "K",
              "漢字", "かな", "한국", "नमस्ते", "ไทย", "مرحبا", "١٢٣", "²", "Ⅷ", "𝟘", "👩‍👩‍👧", "🇩🇪", "…", "—", "'s", "'S", "'ll", "'LL",
              "'ſ", "’s", "'", "''", "1", "1234567", ".", "!?", "_", "\x00", "\x1f", "\ufeff", "\U0010ffff", "<|", "|>", END_OF_TEXT]
    letters = [c for c in range(0x110000) if assigned(c)]
    return {
        "king james": bible,
        "code": "".join(path.read_text(encoding="utf-8") for path in sources),
        "unicode": "".join(rng.choice(pieces) for _ in range(60000)),
        "characters": "".join(chr(rng.choice(letters)) + rng.choice(["", "", " ", "a", "1"]) for _ in range(60000)),
        "every character": "".join(map(chr, letters)),
        "bytes": rng.randbytes(100000).decode("utf-8", errors="replace") + rng.randbytes(100000).decode("latin-1"),
    }


TEXTS = texts()


def byte_level(vocabulary, pre_tokenizer, special=(END_OF_TEXT,)):
    """A byte-pair encoding that the library has learned."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([TEXTS["king james"][:400000], TEXTS["code"][:200000], TEXTS["unicode"][:20000]], trainer)
    return made


@functools.cache
def gpt2(vocabulary=2000):
    return byte_level(vocabulary, pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3(vocabulary=2000, ignore_merges=True):
    """Laid out as Llama 3's tokenizer.json: its words, special tokens behind the vocabulary, <|begin_of_text|> before a text.
    Half of the merges are gone, so that only ignoring them finds those words."""
    made = byte_level(vocabulary, pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(LLAMA3_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)]), special=())
    made.add_special_tokens([END_OF_TEXT, "<|begin_of_text|>", "<|eot_id|>"])
    begin = made.token_to_id("<|begin_of_text|>")
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    file = json.loads(made.to_str())
    file["model"]["ignore_merges"] = ignore_merges
    if ignore_merges:
        file["model"]["merges"] = file["model"]["merges"][::2]
    return tokenizers.Tokenizer.from_str(json.dumps(file)), file


class TokenizersTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="tegula-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def prepare(self, text, *arguments, code=0):
        """Runs the program on the text twice, so that it cuts training text from the other in the middle."""
        (self.folder / "text.txt").write_bytes(2 * text.encode())
        done = subprocess.run([PROGRAM, "prepare", "--text", self.folder / "text.txt", "--validation", "0.5", "--out",
                               self.folder / "out", *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def expect_same(self, library, path, which=tuple(TEXTS)):
        """All texts have the ids that the library says; so they have by the files that we write of the tokenizer."""
        for name in which:
            text = TEXTS[name]
            self.prepare(text, "--tokenizer", path)
            expected = library.encode(text, add_special_tokens=False).ids
            self.expect_ids(expected, library, name)
            again = tokenizers.Tokenizer.from_file(str(self.folder / "out/tokenizer.json"))
            self.assertEqual(again.encode(text, add_special_tokens=False).ids, expected, name)
            self.assertEqual(again.get_vocab(), library.get_vocab())

    def expect_ids(self, expected, library, name):
        ids, vocabulary = token_file.read(self.folder / "out/train.tokens")
        self.assertEqual(vocabulary, library.get_vocab_size())
        self.assertEqual(ids, token_file.read(self.folder / "out/validation.tokens")[0])
        if ids.tolist() == expected:
            return
        at = next((i for i, pair in enumerate(zip(ids, expected)) if pair[0] != pair[1]), min(len(ids), len(expected)))
        around = slice(max(0, at - 5), at + 5)
        ours, theirs = ([library.id_to_token(i) for i in tokens[around]] for tokens in (ids, expected))
        self.fail(f"{name}: token {at} differs: ours {ours}, the library's {theirs}")

    def test_gpt2(self):
        made = gpt2()
        made.save(str(self.folder / "tokenizer.json"))
        self.expect_same(made, self.folder / "tokenizer.json")

    def test_gpt2_in_two_files(self):
        made, files = gpt2(), self.folder / "files"
        files.mkdir()
        made.model.save(str(files))
        self.assertEqual(sorted(path.name for path in files.iterdir()), ["merges.txt", "vocab.json"])
        self.expect_same(made, files, ["king james", "unicode"])

    def test_llama3(self):
        made, file = llama3()
        (self.folder / "tokenizer.json").write_text(json.dumps(file))
        text = TEXTS["king james"]
        merged = tokenizers.Tokenizer.from_str(json.dumps(file | {"model": file["model"] | {"ignore_merges": False}}))
        self.assertNotEqual(made.encode(text).ids, merged.encode(text).ids)  # so that the rule shows
        self.expect_same(made, self.folder / "tokenizer.json")

    def test_llama3_with_all_merges(self):
        made, file = llama3(ignore_merges=False)
        (self.folder / "tokenizer.json").write_text(json.dumps(file))
        self.expect_same(made, self.folder / "tokenizer.json", ["code", "unicode"])

    def test_a_tokenizer_of_another_kind(self):
        """It would load, and give other ids."""
        made = byte_level(400, pre_tokenizers.ByteLevel(add_prefix_space=False))
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(r"\p{L}+|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        made.save(str(self.folder / "tokenizer.json"))
        error = self.prepare(TEXTS["code"], "--tokenizer", self.folder / "tokenizer.json", code=1)
        self.assertIn("pre_tokenizer.pretokenizers[0].pattern.Regex: ", error)
        self.assertFalse((self.folder / "out").exists())

    def test_ours(self):
        """What we learn has the same ids in the library, from either kind of file."""
        text = TEXTS["king james"][:300000] + TEXTS["unicode"][:5000]
        self.prepare(text, "--tokenizer", "bpe", "--vocabulary", 1000)
        out, learned = self.folder / "out", self.folder / "learned"
        shutil.copytree(out, learned)
        library = tokenizers.Tokenizer.from_file(str(learned / "tokenizer.json"))
        self.expect_ids(library.encode(text).ids, library, "what it was learned from")
        self.expect_same(library, learned, ["code", "unicode", "bytes"])
        parts = tokenizers.ByteLevelBPETokenizer.from_file(str(learned / "vocab.json"), str(learned / "merges.txt"))
        parts.add_special_tokens([END_OF_TEXT])
        for name in "king james", "unicode":
            self.assertEqual(parts.encode(TEXTS[name]).ids, library.encode(TEXTS[name]).ids)

    def test_bytes(self):
        self.prepare(TEXTS["code"])
        library = tokenizers.Tokenizer.from_file(str(self.folder / "out/tokenizer.json"))
        for name in "unicode", "bytes":
            self.prepare(TEXTS[name])
            self.expect_ids(library.encode(TEXTS[name]).ids, library, name)


if __name__ == "__main__":
    unittest.main()
